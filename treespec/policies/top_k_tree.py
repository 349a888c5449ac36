"""A tree of the likeliest paths, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.errors import require_integer
from treespec.policies.base import AbstractDraftPolicy, Growth, as_layer
from treespec.tree import Layer, path_logprobs
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class TopKTree(AbstractDraftPolicy):
    """Gives every node its ``top_k`` likeliest children and keeps the best of a layer.

    A layer keeps the nodes whose whole path is likeliest under the draft, as many as
    the budget's width and nodes allow: the expansion step of EAGLE-2 (2406.16858).

    Attributes:
        top_k: Most children of one node.
    """

    proposal = ProposalKind.DETERMINISTIC

    top_k: int = 2

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_integer("policy.top_k", self.top_k, 1)

    @property
    def max_children(self) -> int:
        """``top_k``."""
        return self.top_k

    def grow(self, growth: Growth) -> Layer | None:
        """Return the best children of the frontier."""
        children = growth.draft.top(self.top_k)
        if children.size > growth.room:
            so_far = path_logprobs(growth.tree)[growth.frontier]
            values = so_far[children.rows] + children.logprobs
            # Sorted, so that siblings stay in the order of their likelihood.
            keep = values.topk(growth.room).indices.sort().values
            children = children.select(keep)
        return as_layer(growth, children)
