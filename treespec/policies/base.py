"""Draft policies decide what shape a tree gets.

A policy grows a tree layer by layer from what the drafter says about the frontier: it
picks children, names the next frontier, and stops. It sees the budget, the committed
tokens and the draft's probabilities; it never sees the target's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from treespec.draft import AbstractDraft, Children
from treespec.sampling import AbstractChance, Sampling
from treespec.tree import Layer, TokenTree
from treespec.types import Budget, ProposalKind


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree that is being grown, as its policy sees it.

    Attributes:
        tree: The tree so far.
        frontier: Ids of the nodes that the drafter was asked about.  # [F]
        draft: What it said about them, row by row.
        budget: What the whole tree may cost.
        depth: Depth that new nodes will have.
        committed: The committed text; its last token is the root.
        sampling: How the request samples.
        vocab_size: Size of the target's vocabulary.
        chance: The request's own source of randomness.
    """

    tree: TokenTree
    frontier: Tensor
    draft: AbstractDraft
    budget: Budget
    depth: int
    committed: Sequence[int]
    sampling: Sampling
    vocab_size: int
    chance: AbstractChance

    @property
    def room(self) -> int:
        """Most nodes that the next layer may have."""
        left = self.budget.max_nodes - self.tree.num_drafted
        return min(left, self.budget.max_width)


class AbstractDraftPolicy(ABC):
    """Grows token trees.

    A policy whose proposal is sampled may stop early, but it must never drop, reorder
    or replace a token that it has drawn: that would bias the output.
    """

    @property
    @abstractmethod
    def proposal(self) -> ProposalKind:
        """How it draws the children of a node."""

    @property
    @abstractmethod
    def max_children(self) -> int | None:
        """Most children that it gives to one node; ``None`` if there is no limit."""

    @abstractmethod
    def grow(self, growth: Growth) -> Layer | None:
        """Return the next layer, at most ``growth.room`` nodes; ``None`` to stop."""


def as_layer(growth: Growth, children: Children) -> Layer | None:
    """Return the candidates as a layer, or ``None`` if there are none."""
    if children.size == 0:
        return None
    return Layer(
        parents=growth.frontier[children.rows],
        tokens=children.tokens,
        draft_logprobs=children.logprobs,
        sources=children.sources,
    )
