"""The target's own lower layers as drafter (LayerSkip, 2404.16710; 2309.08168).

No second model is in memory, and nothing is trained here: how often a target agrees
with its lower layers depends on how it was trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from treespec.drafters.base import AbstractDrafter, DraftSetting
from treespec.drafters.draft_model import DraftModelSession
from treespec.errors import TreespecError, require_integer
from treespec.models.base import AbstractLanguageModel


@dataclass(frozen=True, slots=True)
class EarlyExit(AbstractDrafter):
    """Drafts with the first layers of the target, then its final norm and its head.

    All weights are shared and the target is never written to. A draft forward costs
    ``exit_layer`` layers and a whole head; the lower layers have slots of their own, so
    the target's keys and values are not read and its forward repeats those layers.

    Attributes:
        model: The target.
        exit_layer: How many of its layers are run, from 1 to all of them.
    """

    source_names = ("early_exit",)
    hidden_layers = ()

    model: AbstractLanguageModel
    exit_layer: int = 3

    def __post_init__(self) -> None:
        """Check that the model has so many layers."""
        if not isinstance(self.model, AbstractLanguageModel):
            raise TreespecError(
                f"drafter.model must be a language model, got {self.model!r}; write "
                "drafter.model=pair.target"
            )
        require_integer("drafter.exit_layer", self.exit_layer, 1)
        if self.exit_layer > self.model.num_layers:
            raise TreespecError(
                f"drafter.exit_layer must be from 1 to {self.model.num_layers}, the "
                f"number of layers of drafter.model, got {self.exit_layer}; give a "
                f"lower one, such as drafter.exit_layer=1"
            )

    @property
    def runs_model(self) -> bool:
        """It always does: a part of the target's."""
        return True

    def start(self, setting: DraftSetting) -> DraftModelSession:
        """Return a session with slots for all requests."""
        return DraftModelSession(self.model.lower_layers(self.exit_layer), setting)
