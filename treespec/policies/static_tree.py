"""Trees whose shape is fixed before any token is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from treespec.errors import TreespecError, unknown_name
from treespec.policies.base import (
    AbstractDraftPolicy,
    Growth,
    as_layer,
    drawn_children,
)
from treespec.policies.shape import ROOT_PATH, RankPath, TreeShape, cut
from treespec.tree import ROOT, Layer, sibling_ranks
from treespec.types import Budget, ProposalKind

PROPOSALS = (
    ProposalKind.DETERMINISTIC,
    ProposalKind.WITH_REPLACEMENT,
    ProposalKind.WITHOUT_REPLACEMENT,
)
"""Kinds whose first children do not depend on how many more there are."""


@dataclass(frozen=True, slots=True)
class StaticTree(AbstractDraftPolicy):
    """Fills a fixed shape with the draft's tokens, a layer per expansion.

    The rank of a node is that of its token: by likelihood if the proposal is
    deterministic (Medusa, 2401.10774; EAGLE, 2401.15077), by draw order if it is
    sampled (Sequoia, 2402.12374; SpecInfer, 2305.09781). A smaller budget cuts the
    shape to its most valuable nodes, whatever was drawn; where the draft knows fewer
    tokens there are fewer nodes. A token that is drawn again shares the subtree of its
    first draw.

    Attributes:
        shape: The shape.
        proposal: How children come about; a name of ``ProposalKind``.
    """

    shape: TreeShape
    proposal: ProposalKind = ProposalKind.DETERMINISTIC

    def __post_init__(self) -> None:
        """Check the shape and the proposal."""
        if not isinstance(self.shape, TreeShape):
            raise TreespecError(
                f"policy.shape must be a TreeShape, got {self.shape!r}; from a "
                "configuration choose policy=static_tree with policy.widths"
            )
        if self.proposal not in PROPOSALS:
            raise unknown_name("value", f"policy.proposal={self.proposal}", PROPOSALS)
        object.__setattr__(self, "proposal", ProposalKind(self.proposal))

    @property
    def max_children(self) -> int:
        """Most children of one node of the shape."""
        return self.shape.max_children

    @property
    def whole(self) -> Budget:
        """Depth, width and nodes of the shape."""
        shape = self.shape
        return Budget(shape.depth, shape.width, shape.num_nodes)

    def grow(self, growth: Growth) -> Layer | None:
        """Return the next layer of the shape, as far as there are tokens for it."""
        plan = _planned(self.shape, growth.budget)
        if growth.depth > len(plan.sizes):
            return None
        nodes = _shape_nodes(growth, plan)
        num_children = _column(plan.num_children, growth)[nodes]
        if self.proposal is ProposalKind.DETERMINISTIC:
            layer = _likeliest(growth, num_children, plan)
        else:
            rows, most = growth.draft.known_rows(), plan.widest[growth.depth - 1]
            layer = drawn_children(
                growth, self.proposal, rows, num_children[rows], most
            )
        return None if layer is None else _expanding(layer, growth, nodes, plan)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A shape cut to a budget, its nodes numbered layer by layer; the root is node 0.

    Attributes:
        num_children: Children of each node.
        first_child: Number of each node's first child; its siblings follow.
        inner: Nodes with children at depth 0, 1, ... down to the deepest.
        sizes: Nodes at depth 1, 2, ...
        widest: Most children of one node at depth 0, 1, ...
    """

    num_children: tuple[int, ...]
    first_child: tuple[int, ...]
    inner: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    widest: tuple[int, ...]


@lru_cache(maxsize=256)
def _planned(shape: TreeShape, budget: Budget) -> _Plan:
    """Return the shape as a step with this budget fills it."""
    # By depth, parent and rank: as the nodes of a grown tree are numbered.
    paths = sorted((ROOT_PATH, *cut(shape, budget)), key=lambda path: (len(path), path))
    children: dict[RankPath, list[int]] = {path: [] for path in paths}
    for number, path in enumerate(paths[1:], start=1):
        children[path[:-1]].append(number)
    numbers = [children[path] for path in paths]
    depth = len(paths[-1])
    layers = [
        [number for number, path in enumerate(paths) if len(path) == above]
        for above in range(depth + 1)
    ]
    return _Plan(
        num_children=tuple(map(len, numbers)),
        first_child=tuple(found[0] if found else 0 for found in numbers),
        inner=tuple(tuple(n for n in layer if numbers[n]) for layer in layers),
        sizes=tuple(map(len, layers[1:])),
        widest=tuple(max(len(numbers[n]) for n in layer) for layer in layers[:-1]),
    )


def _shape_nodes(growth: Growth, plan: _Plan) -> Tensor:  # [F]
    """Return which node of the plan each frontier node is."""
    inner = plan.inner[growth.depth - 1]
    if growth.frontier.shape[0] == len(inner):  # nothing is missing
        return _column(inner, growth)
    parents = growth.tree.parents
    ranks = sibling_ranks(parents)
    first_child = _column(plan.first_child, growth)
    nodes = torch.zeros_like(parents)
    for _ in range(growth.depth - 1):  # one more depth is right after each
        nodes = first_child[nodes[parents]] + ranks
        nodes[ROOT] = 0
    return nodes[growth.frontier]


def _likeliest(growth: Growth, num_children: Tensor, plan: _Plan) -> Layer | None:
    """Return the likeliest children of every frontier node, as many as it gets."""
    layer = growth.depth - 1
    children = growth.draft.top(plan.widest[layer])
    children = children.select(children.rows.argsort(stable=True))
    wanted = sibling_ranks(children.rows) < num_children[children.rows]
    full = children.size == len(plan.inner[layer]) * plan.widest[layer]
    places = _true_places(wanted, plan.sizes[layer] if full else None)
    return as_layer(growth, children.select(places))


def _expanding(layer: Layer, growth: Growth, nodes: Tensor, plan: _Plan) -> Layer:
    """Return the layer with only those nodes expanded that the shape goes on from."""
    rows = torch.searchsorted(growth.frontier, layer.parents)
    first_child = _column(plan.first_child, growth)[nodes]
    new = first_child[rows] + sibling_ranks(layer.parents)
    goes_on = _column(plan.num_children, growth)[new] > 0
    first = growth.tree.size
    if layer.expand is not None:
        return replace(layer, expand=layer.expand[goes_on[layer.expand - first]])
    full = layer.size == plan.sizes[growth.depth - 1]
    count = len(plan.inner[growth.depth]) if full else None
    return replace(layer, expand=first + _true_places(goes_on, count))


def _true_places(mask: Tensor, count: int | None) -> Tensor:  # [M] bool -> [count]
    """Return where the mask is true, without waiting for the device if it is known."""
    if count is None:
        return mask.nonzero().flatten()
    return mask.int().argsort(descending=True, stable=True)[:count]


def _column(values: tuple[int, ...], growth: Growth) -> Tensor:
    return torch.tensor(values, device=growth.frontier.device)
