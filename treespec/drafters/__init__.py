"""Where do candidate tokens come from?"""

from treespec.drafters.all_sources import all_sources
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
    Successors,
)
from treespec.drafters.cascade import Cascade
from treespec.drafters.draft_model import DraftModel
from treespec.drafters.early_exit import EarlyExit
from treespec.drafters.marginals import Marginals
from treespec.drafters.merge import Merge
from treespec.drafters.prompt_lookup import PromptLookup
from treespec.drafters.suffix_memory import SuffixMemory
from treespec.drafters.token_recycling import RecyclingTable, TokenRecycling

__all__ = [
    "AbstractDraftSession",
    "AbstractDrafter",
    "Cascade",
    "DraftModel",
    "DraftSetting",
    "EarlyExit",
    "Feedback",
    "Frontier",
    "Marginals",
    "Merge",
    "PromptLookup",
    "RecyclingTable",
    "Successors",
    "SuffixMemory",
    "TokenRecycling",
    "all_sources",
]
