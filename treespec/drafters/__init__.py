"""Where do candidate tokens come from?"""

from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
    Successors,
)
from treespec.drafters.draft_model import DraftModel
from treespec.drafters.early_exit import EarlyExit
from treespec.drafters.prompt_lookup import PromptLookup
from treespec.drafters.suffix_memory import SuffixMemory

__all__ = [
    "AbstractDraftSession",
    "AbstractDrafter",
    "DraftModel",
    "DraftSetting",
    "EarlyExit",
    "Feedback",
    "Frontier",
    "PromptLookup",
    "Successors",
    "SuffixMemory",
]
