"""The shape that commits most, by Sequoia's dynamic program (2402.12374)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treespec.costs import Costs
from treespec.errors import TreespecError, require_integer
from treespec.policies.shape import (
    MAX_NODES,
    ROOT_PATH,
    AcceptanceTable,
    RankPath,
    TreeShape,
    check_acceptance,
    check_num_nodes,
    ordered_shape,
)

MAX_DEPTH = 64
"""Deepest shape that is searched for; work grows with the square of it."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlannedShape:
    """A shape and what is expected of it.

    Attributes:
        shape: The shape.
        expected_tokens: Committed tokens per step, the target's own included.
        step_s: Seconds of a step's forwards.
    """

    shape: TreeShape
    expected_tokens: float
    step_s: float

    @property
    def token_s(self) -> float:
        """Seconds per committed token."""
        return self.step_s / self.expected_tokens


def optimal_shape(
    acceptance: AcceptanceTable, num_nodes: int, max_depth: int
) -> TreeShape:
    """Return a shape of at most ``num_nodes`` nodes that commits most on average.

    Nodes that are never accepted are left out. Takes time in proportion to depth x
    ranks x nodes^2: 128 nodes, depth 10 and 32 ranks are well below a second.

    Args:
        acceptance: Probabilities by depth and rank; one row is Sequoia's vector.
        num_nodes: Most nodes, root excluded.
        max_depth: Deepest node.

    Raises:
        TreespecError: A number is out of bounds, or nothing is ever accepted.
    """
    check_num_nodes("policy.num_nodes", num_nodes)
    _require_depth(max_depth)
    return _shape(acceptance, _solve(acceptance, num_nodes, max_depth), num_nodes)


def planned_shape(
    acceptance: AcceptanceTable, costs: Costs, max_depth: int
) -> PlannedShape:
    """Return the optimal shape of the size and depth that cost least per token.

    Tries every size that was measured at every depth up to ``max_depth``. A step costs
    one drafting per depth, as wide as the nodes that have children there, and one
    target forward over the nodes and the root.

    Raises:
        TreespecError: No size above one row was measured, or nothing is ever accepted.
    """
    _require_depth(max_depth)
    measured = costs.target_curve.rows
    sizes = sorted(rows - 1 for rows in measured if 1 < rows <= MAX_NODES)
    if not sizes:
        raise TreespecError(
            f"the target's costs have no size from 2 to {MAX_NODES} rows, so no tree "
            "can be chosen by them; run treespec calibrate again, or give "
            "policy.num_nodes=N"
        )
    plans = []
    for depth in range(1, max_depth + 1):
        solution = _solve(acceptance, sizes[-1], depth)
        for size in sizes:
            # A small tree may hold nothing but ranks that were never accepted.
            if solution[0].num_children[1 + size]:
                shape = _shape(acceptance, solution, size)
                plans.append(plan(shape, acceptance, costs))
    if not plans:
        raise _nothing_accepted()
    return min(plans, key=lambda plan: plan.token_s)


def plan(shape: TreeShape, acceptance: AcceptanceTable, costs: Costs) -> PlannedShape:
    """Return what is expected of a shape."""
    draft_s = sum(costs.draft(width) for width in shape.expansions())
    return PlannedShape(
        shape=shape,
        expected_tokens=shape.expected_tokens(acceptance),
        step_s=draft_s + costs.target(1 + shape.num_nodes),
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """Best subtrees whose root lies at one depth.

    ``M`` counts the nodes that a subtree may have, its root included.

    Attributes:
        best: Expected tokens, the subtree's root included.  # [1 + M]
        num_children: Children of the root in the best subtree.  # [1 + M]
        kept: Nodes left to the root and its first b - 1 children if it has exactly b;
            the b-th child's subtree has the others.  # [1 + K, 1 + M]
    """

    best: Floats
    num_children: Integers
    kept: Integers


def _solve(acceptance: AcceptanceTable, num_nodes: int, max_depth: int) -> list[_Level]:
    """Return the best subtrees at depth 0, 1, ... ``max_depth``."""
    check_acceptance(acceptance)
    size = 1 + num_nodes
    leaf = np.concatenate(([-np.inf], np.ones(size)))
    none = np.zeros((1, 1 + size), dtype=np.int64)
    levels = [_Level(leaf, none[0], none)]
    for depth in reversed(range(max_depth)):
        row = np.asarray(acceptance[min(depth, len(acceptance) - 1)], dtype=np.float64)
        levels.append(_level_above(levels[-1].best, row))
    return levels[::-1]


def _level_above(below: Floats, row: Floats) -> _Level:
    """Return the level whose nodes' children have the best subtrees ``below``.

    ``F(m, b) = max over y of F(y, b - 1) + a_b * best_below(m - y)``: y nodes for the
    root and its first b - 1 children, the rest for the b-th.
    """
    size = below.shape[0]
    left = np.subtract.outer(np.arange(size), np.arange(size))  # [m, y] -> m - y
    has_child = left > 0
    of_child = below[np.maximum(left, 1)]
    alone = np.where(np.arange(size) > 0, 1.0, -np.inf)
    values, kept = [alone], [np.zeros(size, dtype=np.int64)]
    for probability in row:
        gain = np.where(has_child, values[-1] + probability * of_child, -np.inf)
        y = gain.argmax(axis=1)
        values.append(gain.max(axis=1))
        kept.append(y)
    every = np.stack(values)
    return _Level(every.max(axis=0), every.argmax(axis=0), np.stack(kept))


def _shape(
    acceptance: AcceptanceTable, levels: list[_Level], num_nodes: int
) -> TreeShape:
    paths = list(_paths(levels, ROOT_PATH, 1 + num_nodes))
    if not paths:
        raise _nothing_accepted()
    return ordered_shape(acceptance, paths)


def _paths(levels: list[_Level], root: RankPath, size: int) -> Iterator[RankPath]:
    """Yield the nodes below ``root`` in the best subtree of ``size`` nodes."""
    level = levels[len(root)]
    for rank in reversed(range(level.num_children[size])):
        kept = int(level.kept[1 + rank, size])
        child = (*root, rank)
        yield child
        yield from _paths(levels, child, size - kept)
        size = kept


def _require_depth(max_depth: int) -> None:
    require_integer("policy.max_depth", max_depth, 1, f" and at most {MAX_DEPTH}")
    if max_depth > MAX_DEPTH:
        raise TreespecError(
            f"policy.max_depth must be at most {MAX_DEPTH}, got {max_depth}"
        )


def _nothing_accepted() -> TreespecError:
    return TreespecError(
        "policy.calibration: by it no tree of this size accepts anything, so none is "
        "better than no tree; calibrate with more prompts, or choose another drafter"
    )
