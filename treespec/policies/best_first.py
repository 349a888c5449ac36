"""One search for the likeliest paths: EAGLE-2, OPT-Tree, SpecExec, DDTree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.draft import Children
from treespec.errors import (
    TreespecError,
    require_integer,
    require_number,
    unknown_name,
)
from treespec.policies.base import AbstractDraftPolicy, Growth, Situation
from treespec.tree import (
    ROOT,
    Layer,
    TokenTree,
    node_depths,
    path_logprobs,
    path_minima,
)
from treespec.types import Budget, ProposalKind

SCOPES = ("layer", "tree")


@dataclass(frozen=True, slots=True)
class BestFirst(AbstractDraftPolicy):
    """Expands the likeliest nodes and verifies the likeliest candidates.

    Maximizes the sum of the path probabilities of ``budget.max_nodes`` nodes: expected
    accepted tokens, if the draft's probabilities were those of acceptance. Its options
    give EAGLE-2 (2406.16858), OPT-Tree (2406.17276), SpecExec (2406.02532) and, on a
    drafter of marginals, DDTree (2604.12989).

    A path's value never rises on its way down. So candidates below the best
    ``max_nodes`` so far can be forgotten, a node whose children could not get above
    them is not expanded, and growth stops when no node is left: no draft forward is
    spent on what would be pruned. To know that, it waits for the device once per
    expansion.

    Attributes:
        max_children: Most candidates below one node.
        beam: Most nodes expanded per draft forward. More than ``budget.max_width`` are
            never there, for that many children stay of one expansion.
        scope: Which nodes may be expanded: ``layer`` the newest ones only, as in
            EAGLE-2 and OPT-Tree; ``tree`` all, as in SpecExec, so that a good node that
            the beam had no room for has its turn later.
        decay: Factor on a path's probability per node, in (0, 1]; less than 1 prefers
            shallow trees.
        min_gain: Stop when an expansion raised the sum of the best path probabilities
            by no more than this; 0 never stops.
    """

    proposal = ProposalKind.DETERMINISTIC
    prunes = True

    max_children: int = 8
    beam: int = 8
    scope: str = "tree"
    decay: float = 1.0
    min_gain: float = 0.0

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_integer("policy.max_children", self.max_children, 1)
        require_integer("policy.beam", self.beam, 1)
        if self.scope not in SCOPES:
            raise unknown_name("value", f"policy.scope={self.scope}", SCOPES)
        require_number("policy.decay", self.decay)
        require_number("policy.min_gain", self.min_gain)
        if not 0 < self.decay <= 1:
            raise TreespecError(
                f"policy.decay must be in (0, 1], got {self.decay}; 1 turns it off"
            )
        if not self.min_gain >= 0:
            raise TreespecError(
                f"policy.min_gain must be >= 0, got {self.min_gain}; 0 turns it off"
            )

    @property
    def whole(self) -> Budget:
        """Room for a frontier as wide as the beam."""
        return Budget(1, self.beam, self.beam)

    def grow(self, growth: Growth) -> Layer | None:
        """Return the children that are among the best candidates so far."""
        tree, budget = growth.tree, growth.budget
        old = self._values(tree, growth.depth)
        children, new = self._best_children(growth, old)
        values = torch.cat((old[1:], new))  # of all candidates  # [C]
        ranked, order = values.sort(descending=True, stable=True)
        ranked, order = ranked[: budget.max_nodes], order[: budget.max_nodes]
        is_best = torch.zeros_like(values, dtype=torch.bool)
        is_best = is_best.index_fill(0, order, True) & (values > -math.inf)
        enters = is_best[tree.num_drafted :]

        is_open = torch.cat((self._is_open(growth), enters))
        is_open &= values > self._least_worth(budget, ranked)
        if self.min_gain > 0:
            is_open &= _gain(old, ranked) > self.min_gain
        earlier = torch.arange(1, tree.size, device=values.device)
        ids = torch.cat((earlier, tree.num_drafted + enters.cumsum(0)))
        expand = ids[order[is_open[order]][: self.beam]]

        children = children.select(enters.nonzero().flatten())
        if not children.size and not expand.shape[0]:
            return None
        return Layer(
            parents=growth.frontier[children.rows],
            tokens=children.tokens,
            draft_logprobs=children.logprobs,
            sources=children.sources,
            expand=expand.sort().values,
        )

    def prune(self, tree: TokenTree, budget: Budget, situation: Situation) -> Tensor:
        """Return the best nodes and the root: a tree, as no child beats its parent.

        But for rounding: sums along two paths are rounded differently, and the
        log-probability of a certain token may come out above 0. Hence the minima.
        """
        values = self._values(tree, budget.max_depth)
        values = path_minima(values, tree.parents, budget.max_depth)[1:]
        order = values.sort(descending=True, stable=True).indices
        keep = 1 + order[: budget.max_nodes].sort().values
        return torch.cat((torch.full_like(keep[:1], ROOT), keep))

    def _values(self, tree: TokenTree, max_depth: int) -> Tensor:  # [N]
        """Return the logarithm of every path's decayed probability."""
        values = path_logprobs(tree, max_depth)
        if self.decay < 1:
            depths = node_depths(tree.parents, max_depth)
            values = values + math.log(self.decay) * depths
        return values

    def _best_children(
        self, growth: Growth, values: Tensor
    ) -> tuple[Children, Tensor]:  # [N] -> [M]
        """Return the best children that a layer has room for, and their values."""
        children = growth.draft.top(self.max_children)
        above = values[growth.frontier[children.rows]]
        new = above + (children.logprobs + math.log(self.decay)).clamp(max=0.0)
        width = growth.budget.max_width
        if children.size > width:
            keep = new.sort(descending=True, stable=True).indices[:width].sort().values
            children, new = children.select(keep), new[keep]
        return children, new

    def _is_open(self, growth: Growth) -> Tensor:  # [N - 1] bool
        """Return which earlier nodes, the root excluded, may still be expanded."""
        if self.scope == "layer":
            return torch.zeros_like(growth.tree.tokens[1:], dtype=torch.bool)
        return ~growth.tree.is_expanded.index_fill(0, growth.frontier, True)[1:]

    def _least_worth(self, budget: Budget, ranked: Tensor) -> Tensor | float:
        """Return the value above which a node's children could be among the best.

        They are worth less by the decay, and a tie goes to the earlier node.
        """
        if ranked.shape[0] < budget.max_nodes:
            return -math.inf
        return ranked[-1] - math.log(self.decay)


def _gain(old: Tensor, ranked: Tensor) -> Tensor:  # [N], [B] -> []
    """Return by how much an expansion raised the sum of the best probabilities."""
    before = old[1:].sort(descending=True).values[: ranked.shape[0]]
    return ranked.exp().sum() - before.exp().sum()
