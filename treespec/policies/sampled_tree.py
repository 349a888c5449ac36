"""Trees of tokens drawn from the draft's law: what most lossless rules ask for."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.errors import TreespecError, require_integer, unknown_name
from treespec.policies.base import AbstractDraftPolicy, Growth, drawn_layer
from treespec.siblings import PAIR
from treespec.tree import Layer
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class SampledTree(AbstractDraftPolicy):
    """Gives the likeliest nodes of every layer ``num_children`` drawn children each.

    Without replacement this is RSD-C (2402.14160); with replacement, a tree as of
    SpecInfer (2305.09781).

    Attributes:
        num_children: Children of one node; fewer where a law runs out of tokens or the
            budget is smaller.
        proposal: How they are drawn; a name of ``ProposalKind``.
    """

    num_children: int = 2
    proposal: ProposalKind = ProposalKind.WITHOUT_REPLACEMENT

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_integer("policy.num_children", self.num_children, 1)
        drawn = [kind for kind in ProposalKind if kind != ProposalKind.DETERMINISTIC]
        if self.proposal == ProposalKind.DETERMINISTIC:
            raise TreespecError(
                "policy.proposal is deterministic, but a sampled tree draws its "
                f"children; use one of {', '.join(drawn)}, or policy=top_k_tree"
            )
        if self.proposal not in drawn:
            raise unknown_name("value", f"policy.proposal={self.proposal}", drawn)
        object.__setattr__(self, "proposal", ProposalKind(self.proposal))
        if self.proposal is ProposalKind.ARGMAX_PAIR and self.num_children != PAIR:
            raise TreespecError(
                "policy.num_children must be 2 for policy.proposal=argmax_pair, "
                f"got {self.num_children}"
            )

    @property
    def max_children(self) -> int:
        """``num_children``."""
        return self.num_children

    def grow(self, growth: Growth) -> Layer | None:
        """Return drawn children of the frontier's likeliest nodes."""
        return drawn_layer(growth, self.proposal, self.num_children)
