"""Traversal verification: a tree is weighed from its leaves to its root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from treespec.acceptance.base import (
    AbstractAcceptanceRule,
    draft_law,
    positive_mass,
    target_law,
)
from treespec.acceptance.nodewise import law_without, same_law
from treespec.chance import AbstractChance
from treespec.sampling import Sampling
from treespec.tree import ROOT, HostTree, TokenTree
from treespec.types import Acceptance, ProposalKind


@dataclass(frozen=True, slots=True)
class TraversalVerification(AbstractAcceptanceRule):
    """Tests the leaves first, and gives up a node only after its children (2505.12398).

    The subtree of a node u must emit the target's law there, scaled by the probability
    reach(u) with which u may stay. A child drawn from q covers min(q, reach p) of that;
    if it is given up, [reach p - q]+ is left for the siblings after it and for u
    itself. On a chain this is block verification, on a tree of depth 1 it is rejection.
    """

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False
    proposals = MappingProxyType(
        {ProposalKind.WITH_REPLACEMENT: None, ProposalKind.WITHOUT_REPLACEMENT: None}
    )

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the path that survives; waits for the device at every node.

        Raises:
            NumericalError: The target's or the draft's logits are NaN.
        """
        view = _View(tree, tree.host(), target_logits, sampling)
        children = view.host.children()
        whole = torch.ones((), device=target_logits.device)
        path = [_Node(ROOT, whole, iter(children[ROOT]), view)]
        while True:
            node = path[-1]
            child = next(node.untried, None)
            if child is not None:
                reach = node.reach_of(view.host.tokens[child])
                if reach > 0:
                    path.append(_Node(child, reach, iter(children[child]), view))
                else:  # nothing below it can stay either
                    node.give_up(view.host.tokens[child])
            elif len(path) == 1 or chance.accepts(node.reach):
                token = int(chance.draw(node.target_probs))
                nodes = tuple(above.id for above in path[1:])
                is_leaf = not children[node.id]
                return Acceptance(nodes, token, "bonus" if is_leaf else "recovered")
            else:
                path.pop()
                path[-1].give_up(view.host.tokens[node.id])


@dataclass(frozen=True, slots=True)
class _View:
    """Everything that is known of the tree."""

    tree: TokenTree
    host: HostTree
    target_logits: Tensor
    sampling: Sampling


class _Node:
    """A node on the path that is being tested, and what is left to emit below it.

    Attributes:
        id: Its id.
        reach: Probability with which it may stay.  # []
        untried: Its children that were not tested yet.
    """

    def __init__(
        self, node_id: int, reach: Tensor, untried: Iterator[int], view: _View
    ) -> None:
        self.id, self.reach, self.untried = node_id, reach, untried
        self._view = view
        self._target_probs: Tensor | None = None
        self._draft_probs: Tensor | None = None

    @property
    def target_probs(self) -> Tensor:  # [V]
        """What is left of the target's law; read at the first use."""
        if self._target_probs is None:
            view = self._view
            self._target_probs = target_law(view.target_logits, self.id, view.sampling)
        return self._target_probs

    @property
    def draft_probs(self) -> Tensor:  # [V]
        """The law that the next child was drawn from."""
        if self._draft_probs is None:
            self._draft_probs = draft_law(self._view.tree, self._view.host, self.id)
        return self._draft_probs

    def reach_of(self, token: int) -> Tensor:  # []
        """Return the probability with which a child may stay."""
        ratio = self.target_probs[token] / self.draft_probs[token]
        return (self.reach * ratio).clamp(max=1)

    def give_up(self, token: int) -> None:
        """Take away what a child that was given up has covered."""
        residual = (self.reach * self.target_probs - self.draft_probs).clamp_(min=0)
        mass = positive_mass(residual, self.id)
        if mass is None:
            # All is covered; if nothing should be, the laws are equal but for rounding.
            self.reach = torch.where(self.reach < 1, 0.0, self.reach)
        else:
            self._target_probs = residual / mass
            self.reach = mass / (mass + 1 - self.reach)
        replaced = self._view.tree.proposal is ProposalKind.WITH_REPLACEMENT
        law_of_next = same_law if replaced else law_without
        self._draft_probs = law_of_next(self.draft_probs, token)
