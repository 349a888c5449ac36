"""Trees that are deep where the draft is sure, and wide where it is not."""

from __future__ import annotations

import math
from dataclasses import dataclass

from treespec.errors import TreespecError, require_integer, require_number
from treespec.policies.base import AbstractDraftPolicy, Growth, as_layer
from treespec.tree import Layer, path_logprobs
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class ConfidenceTree(AbstractDraftPolicy):
    """Keeps of every layer the paths that are nearly as likely as its best one.

    A sure draft leaves one node in a layer, so that a fixed number of nodes makes a
    long line; an unsure one leaves many, and the same number makes a short, wide tree:
    the shape of TALON (2601.07353). Waits for the device once per layer.

    Attributes:
        max_children: Most children of one node.
        ratio: Least probability of a path as a share of the best one's of its layer,
            in [0, 1]; 0 keeps as many as there is room for.
    """

    proposal = ProposalKind.DETERMINISTIC

    max_children: int = 8
    ratio: float = 0.25

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_integer("policy.max_children", self.max_children, 1)
        require_number("policy.ratio", self.ratio)
        if not 0 <= self.ratio <= 1:
            raise TreespecError(
                f"policy.ratio must be in [0, 1], got {self.ratio}; 0 keeps all that "
                "there is room for, 1 the best path only"
            )

    def grow(self, growth: Growth) -> Layer | None:
        """Return the layer's best path and those that come near it."""
        children = growth.draft.top(self.max_children)
        if children.size == 0:
            return None
        so_far = path_logprobs(growth.tree)[growth.frontier]
        values = so_far[children.rows] + children.logprobs
        ranked, order = values.sort(descending=True, stable=True)
        least = ranked[0] + (math.log(self.ratio) if self.ratio else -math.inf)
        near = order[: growth.room][ranked[: growth.room] >= least]
        return as_layer(growth, children.select(near.sort().values))
