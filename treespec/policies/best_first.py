"""One search for the likeliest paths: EAGLE-2, OPT-Tree, SpecExec, DDTree."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from operator import neg

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
    NOT_EXPANDED,
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
        best = _best(torch.cat((old[1:], new)), budget.max_nodes)
        num_old = tree.num_drafted
        enters = sorted([c for c in best.candidates if c >= num_old])
        nodes = dict(zip(enters, count(tree.size), strict=False))
        is_open = self._open_nodes(growth) + [True] * children.size
        worthy = best.candidates[: best.num_above(self._least_worth(budget, best))]
        wanted = [c for c in worthy if is_open[c]][: self.beam]
        expand = sorted(nodes.get(c, c + 1) for c in wanted)
        if self.min_gain > 0 and _gain(old[1:].tolist(), best) <= self.min_gain:
            expand = []
        if not enters and not expand:
            return None
        like = growth.frontier
        children = children.select(like.new_tensor([c - num_old for c in enters]))
        return Layer(
            parents=like.index_select(0, children.rows),
            tokens=children.tokens,
            draft_logprobs=children.logprobs,
            sources=children.sources,
            expand=like.new_tensor(expand),
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
        values = path_logprobs(tree)
        if self.decay < 1:
            depths = node_depths(tree.parents, max_depth)
            values = values + math.log(self.decay) * depths
        return values

    def _best_children(
        self, growth: Growth, values: Tensor
    ) -> tuple[Children, Tensor]:  # [N] -> [M]
        """Return the best children that a layer has room for, and their values."""
        children = growth.draft.top(self.max_children)
        above = values.index_select(0, growth.frontier.index_select(0, children.rows))
        new = above + (children.logprobs + math.log(self.decay)).clamp(max=0.0)
        width = growth.budget.max_width
        if children.size > width:
            keep = new.sort(descending=True, stable=True).indices[:width].sort().values
            children, new = children.select(keep), new[keep]
        return children, new

    def _open_nodes(self, growth: Growth) -> list[bool]:
        """Return which earlier nodes, from node 1 on, may still be expanded."""
        if self.scope == "layer":
            return [False] * growth.tree.num_drafted
        is_open = growth.tree.draft_rows == NOT_EXPANDED
        flags: list[bool] = is_open.index_fill(0, growth.frontier, False)[1:].tolist()
        return flags

    def _least_worth(self, budget: Budget, best: _Best) -> float:
        """Return the value above which a node's children could be among the best.

        They are worth less by the decay, and a tie goes to the earlier node.
        """
        if len(best.values) < budget.max_nodes:
            return -math.inf
        return best.values[-1] - math.log(self.decay)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best candidates: the earlier nodes from node 1 on, then the new children.

    Attributes:
        candidates: Their numbers, the best first.
        values: Their values.
    """

    candidates: list[int]
    values: list[float]

    def num_above(self, value: float) -> int:
        """Return how many are worth more."""
        return bisect_left(self.values, -value, key=neg)


def _best(values: Tensor, most: int) -> _Best:
    """Return the best of all candidates that are possible; waits for the device."""
    ranked = values.sort(descending=True, stable=True)
    best = _Best(ranked.indices[:most].tolist(), ranked.values[:most].tolist())
    if best.values and best.values[-1] == -math.inf:
        num_possible = best.values.index(-math.inf)
        return _Best(best.candidates[:num_possible], best.values[:num_possible])
    return best


def _gain(old: Sequence[float], best: _Best) -> float:
    """Return by how much an expansion raised the sum of the best probabilities."""
    before = sorted(old, reverse=True)[: len(best.values)]
    return math.fsum(map(math.exp, best.values)) - math.fsum(map(math.exp, before))
