"""A tree with what its nodes are worth, and what to ask the drafter next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.belief import LARGEST
from treespec.policies.base import Growth
from treespec.policies.lookahead import OpenNode, best_option, best_prefix
from treespec.policies.plan_state import Outlook
from treespec.tree import NOT_EXPANDED, TokenTree

FREE_LOOK = 4
"""Nodes in a row that a source without a forward is asked for at least."""
LIKELY = 0.5
"""Least chance that they are given: asking costs next to nothing."""


@dataclass(frozen=True, slots=True)
class TreePlan:
    """A tree with what its nodes are worth.

    Attributes:
        values: Chance that a node is reached and accepted; 1 for the root.
        chances: The same, given that its parent was.
        sources: Sources.
        expansions: Which expansion a node's was; below 0 if it has had none.
    """

    values: list[float]
    chances: list[float]
    sources: list[int]
    expansions: list[int]


@dataclass(frozen=True, slots=True)
class Expansion:
    """What is asked of the drafter next.

    Attributes:
        nodes: Ids of nodes, ascending.
        may_forward: Whether a draft model may be run for them.
    """

    nodes: list[int]
    may_forward: bool


def next_expansion(
    plan: TreePlan, growth: Growth, outlook: Outlook, prunes: bool
) -> Expansion:
    """Return the nodes that are worth expanding, with a draft model or without.

    Args:
        plan: The tree, with the layer that is to be added.
        growth: How it has grown so far.
        outlook: The situation with its prices.
        prunes: Whether nodes can be left out; if not, they are verified in any case.
    """
    budget, values = growth.budget, plan.values
    left = budget.max_depth - growth.depth
    asked = [node for node, row in enumerate(plan.expansions) if row == NOT_EXPANDED]
    asked.sort(key=lambda node: -values[node])
    if not asked or left <= 0:
        return Expansion([], may_forward=False)
    ranked = sorted(values[1:], reverse=True)
    prices = outlook.prices.target(budget.max_nodes)
    if not prunes:
        ranked, prices = [], prices_beyond(prices, len(ranked))
    flow = outlook.state.belief.flow
    prospects = outlook.prospects(left, budget.max_width)
    has_model = outlook.has_model or growth.num_forwards > 0
    if has_model:
        nodes = [OpenNode(values[i], flow.below(plan.chances[i])) for i in asked]
        price = _ForwardPrice(growth, outlook)
        option = best_option(ranked, nodes, prices, price, prospects)
        if option.gain > 0:
            return Expansion(sorted(asked[: option.width]), may_forward=True)
    if has_model and not outlook.has_free:
        return Expansion([], may_forward=False)
    likely = max(flow.free.value, LIKELY)
    nodes = [OpenNode(values[i], likely) for i in asked]
    width = _free_width(ranked, nodes, prices, budget.max_width)
    return Expansion(sorted(asked[:width]), may_forward=not has_model)


@dataclass(frozen=True, slots=True)
class _ForwardPrice:
    """What a draft forward costs: the first one of a step reads the unread tokens."""

    growth: Growth
    outlook: Outlook

    def __call__(self, width: int, is_next: bool, /) -> float:
        growth, unread = self.growth, 0
        if is_next and not growth.num_forwards:
            # What other sources drafted has not been read either.
            unread = max(growth.situation.num_unread, 1) + growth.depth - 1
        return self.outlook.prices.draft(unread + width)


def prices_beyond(prices: Sequence[float], num_nodes: int) -> list[float]:
    """Return the prices of nodes that are verified besides so many others."""
    return [price - prices[num_nodes] for price in prices[num_nodes:]]


def _free_width(
    values: Sequence[float],
    nodes: Sequence[OpenNode],
    prices: Sequence[float],
    max_width: int,
) -> int:
    """Return how many nodes could be improved on by children that cost no forward."""
    now = best_prefix(values, prices)
    width = 0
    for node in nodes[:max_width]:
        below = [node.value * node.child**level for level in range(1, FREE_LOOK + 1)]
        ranked = sorted((*values, *below), reverse=True)[: len(prices) - 1]
        if best_prefix(ranked, prices).worth <= now.worth:
            break
        width += 1
    return width


@dataclass(frozen=True, slots=True)
class Brood:
    """Chances of children whose parents are reached, child after child.

    Attributes:
        outlook: The situation with its prices.
        left: By parent, the chance that none of its children so far is accepted.
        ranks: By parent, its children so far.
    """

    outlook: Outlook
    left: list[float]
    ranks: list[int]

    @classmethod
    def of(cls, outlook: Outlook, num_parents: int) -> Brood:
        """Return a brood without children."""
        return cls(outlook, [LARGEST] * num_parents, [0] * num_parents)

    def chance(self, parent: int, source: int, logprob: float) -> float:
        """Return the chance of the next child of a parent."""
        rank = self.ranks[parent]
        self.ranks[parent] += 1
        belief, name = self.outlook.state.belief, self.outlook.source_name(source)
        # Only one of the siblings can be accepted.
        chance = min(belief.chance(name, _exp(logprob), rank), self.left[parent])
        self.left[parent] -= chance
        return chance


def read_tree(tree: TokenTree, outlook: Outlook) -> TreePlan:
    """Return what a tree's nodes are worth; waits for the device once."""
    columns = (tree.parents, tree.sources, tree.draft_rows, tree.draft_logprobs)
    numbers = torch.stack([column.double() for column in columns]).tolist()
    parents, sources, rows = (list(map(int, column)) for column in numbers[:3])
    brood = Brood.of(outlook, len(parents))
    values, chances = [1.0], [1.0]
    for node in range(1, len(parents)):
        parent = parents[node]
        chance = brood.chance(parent, sources[node], numbers[3][node])
        chances.append(chance)
        values.append(values[parent] * chance)
    return TreePlan(values, chances, sources, rows)


def _exp(logprob: float) -> float:
    return 0.0 if math.isnan(logprob) else math.exp(min(logprob, 0.0))


def node_ids(numbers: Sequence[int], like: Tensor) -> Tensor:  # [K]
    """Return ids of nodes on the device of a tensor."""
    return torch.tensor(numbers, dtype=torch.int64, device=like.device)
