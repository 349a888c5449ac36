"""One guess after the other: the classic of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.policies.base import AbstractDraftPolicy, Growth, as_layer, drawn_layer
from treespec.tree import Layer
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class Chain(AbstractDraftPolicy):
    """Drafts a line of likeliest tokens; its length is the budget's depth."""

    proposal = ProposalKind.DETERMINISTIC
    max_children = 1

    def grow(self, growth: Growth) -> Layer | None:
        """Return the likeliest child of the last node."""
        return as_layer(growth, growth.draft.top(1))


@dataclass(frozen=True, slots=True)
class SampledChain(AbstractDraftPolicy):
    """Drafts a line of tokens drawn from the draft's law (2211.17192, 2302.01318)."""

    proposal = ProposalKind.WITH_REPLACEMENT
    max_children = 1

    def grow(self, growth: Growth) -> Layer | None:
        """Return a child of the last node, drawn from the draft's law."""
        return drawn_layer(growth, self.proposal, 1)
