"""Shapes of trees, fixed before any token is drafted, and how to find good ones.

A node is named by the ranks that lead to it: ``(0, 2)`` is the third child of the
root's first. What a shape is worth is judged by acceptance probabilities ``a[d][k]``:
that of a node's children, at depth d + 1, the one of rank k is the accepted one. Then
``1 +`` the sum over nodes of the products along their paths is the expected number of
committed tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from operator import mul

from treespec.errors import TreespecError, require_integer
from treespec.types import Budget

RankPath = tuple[int, ...]
AcceptanceTable = Sequence[Sequence[float]]
"""Probabilities by depth and rank; what is deeper has the last row.  # [D][K]"""
ROOT_PATH: RankPath = ()
MAX_RANKS = 64
"""Most ranks that are measured: no draft's 65th guess is worth a node."""
MAX_NODES = 1024
"""Largest shape that is made; a slip of the keys should not fill the memory."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree of ranks.

    Attributes:
        paths: Its nodes without the root, the most valuable first; parents and earlier
            siblings come before a node, so that what is cut off the end leaves a tree.
    """

    paths: tuple[RankPath, ...]

    def __post_init__(self) -> None:
        """Check that the paths make a tree in a sound order."""
        if not self.paths or not all(map(_is_path, self.paths)):
            raise _not_paths(self.paths)
        known = {ROOT_PATH}
        for path in self.paths:
            if path in known:
                raise TreespecError(
                    f"policy.paths has {list(path)} twice; leave one out"
                )
            for needed in _needs(path):
                if needed not in known:
                    raise TreespecError(
                        f"policy.paths has {list(path)} without {list(needed)} before "
                        "it; name parents before children and rank 0 before rank 1"
                    )
            known.add(path)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, root excluded."""
        return len(self.paths)

    @property
    def depth(self) -> int:
        """Deepest node."""
        return max(map(len, self.paths))

    @property
    def width(self) -> int:
        """Nodes in the widest layer."""
        depths = [len(path) for path in self.paths]
        return max(map(depths.count, set(depths)))

    @property
    def max_children(self) -> int:
        """Most children of one node."""
        return 1 + max(path[-1] for path in self.paths)

    def expansions(self) -> list[int]:
        """Return how many nodes have children, depth by depth from the root's."""
        parents = {path[:-1] for path in self.paths}
        depths = [len(path) for path in parents]
        return [depths.count(depth) for depth in range(self.depth)]

    def expected_tokens(self, acceptance: AcceptanceTable) -> float:
        """Return the tokens that a step commits on average, the target's own included.

        Raises:
            TreespecError: A node's rank has no probability.
        """
        check_acceptance(acceptance)
        if self.max_children > len(acceptance[0]):
            raise TreespecError(
                f"the shape has {self.max_children} children at one node, but "
                f"acceptance has {len(acceptance[0])} ranks; measure more ranks"
            )
        return 1.0 + sum(path_value(acceptance, path) for path in self.paths)


def cut(shape: TreeShape, budget: Budget) -> tuple[RankPath, ...]:
    """Return the most valuable nodes that fit into a budget; there may be none.

    A layer is one expansion, so ``max_width`` bounds it.
    """
    kept: dict[RankPath, None] = {}
    room = [budget.max_width] * budget.max_depth
    for path in shape.paths:
        depth = len(path)
        if len(kept) == budget.max_nodes:
            break
        whole = all(needed in kept or not needed for needed in _needs(path))
        if whole and depth <= budget.max_depth and room[depth - 1]:
            room[depth - 1] -= 1
            kept[path] = None
    return tuple(kept)


def path_value(acceptance: AcceptanceTable, path: RankPath) -> float:
    """Return the probability that a whole path is accepted."""
    value = 1.0
    for depth, rank in enumerate(path):
        value *= _row(acceptance, depth)[rank]
    return value


def paths_shape(paths: object) -> TreeShape:
    """Return the tree of nodes given as lists of ranks, the most valuable first.

    Raises:
        TreespecError: They make no tree in a sound order.
    """
    if not isinstance(paths, list | tuple):
        raise _not_paths(paths)
    return TreeShape(
        tuple(tuple(path) if isinstance(path, list) else path for path in paths)
    )


def widths_shape(widths: Sequence[int]) -> TreeShape:
    """Return the tree whose nodes at depth d have ``widths[d]`` children each.

    Nodes are ordered as if each rank were half as likely as the one before it.
    SpecInfer's expansion (2305.09781); a k-ary tree if all widths are k.

    Raises:
        TreespecError: A width is not an integer >= 1, or there is none.
    """
    if not isinstance(widths, list | tuple) or not widths:
        raise TreespecError(
            f"policy.widths must be a list of numbers of children, got {widths!r}; "
            "write policy.widths=[4,2,1]"
        )
    for depth, width in enumerate(widths):
        require_integer(f"policy.widths[{depth}]", width, 1)
    check_num_nodes(
        "the number of nodes of policy.widths", sum(accumulate(widths, mul))
    )
    paths = [
        path
        for depth in range(1, len(widths) + 1)
        for path in product(*map(range, widths[:depth]))
    ]
    ordered = sorted(paths, key=lambda path: (sum(path) + len(path), len(path), path))
    return TreeShape(tuple(ordered))


def comb_shape(num_ranks: int, depth: int) -> TreeShape:
    """Return a line of first children, each with ``num_ranks - 1`` siblings.

    One step with it shows which rank would have been accepted, at every depth that
    first children lead to.

    Raises:
        TreespecError: A number is not an integer >= 1.
    """
    require_integer("policy.num_ranks", num_ranks, 1, f" and at most {MAX_RANKS}")
    require_integer("policy.depth", depth, 1)
    if num_ranks > MAX_RANKS:
        raise TreespecError(
            f"policy.num_ranks must be at most {MAX_RANKS}, got {num_ranks}"
        )
    check_num_nodes("policy.num_ranks times policy.depth", num_ranks * depth)
    paths = [
        (0,) * above + (rank,) for above in range(depth) for rank in range(num_ranks)
    ]
    return TreeShape(tuple(paths))


def greedy_shape(
    acceptance: AcceptanceTable, num_nodes: int, max_depth: int, max_children: int
) -> TreeShape:
    """Return the shape of the largest products of accuracies (Medusa, 2401.10774).

    Grows by the likeliest next path until there are ``num_nodes``, or no more within
    the bounds. Where accuracies fall with the rank, these are the largest products of
    all, and no shape of that size commits more; else an unlikely rank may hide a
    likelier one behind it, see ``optimal_shape``.

    Args:
        acceptance: Accuracies by depth and rank; what is deeper has the last row.
        num_nodes: Nodes wanted, root excluded.
        max_depth: Deepest node.
        max_children: Most children of one node; no more than there are ranks.

    Raises:
        TreespecError: A number is out of bounds.
    """
    check_acceptance(acceptance)
    check_num_nodes("policy.num_nodes", num_nodes)
    require_integer("policy.max_depth", max_depth, 1)
    require_integer("policy.max_children", max_children, 1)
    num_ranks = min(max_children, len(acceptance[0]))

    def exists(path: RankPath) -> bool:
        return len(path) <= max_depth and path[-1] < num_ranks

    return TreeShape(tuple(_likeliest_first(acceptance, exists, num_nodes)))


def ordered_shape(
    acceptance: AcceptanceTable, paths: Collection[RankPath]
) -> TreeShape:
    """Return the shape that has these nodes, the likeliest first."""
    members = frozenset(paths)
    ordered = _likeliest_first(acceptance, members.__contains__, len(members))
    return TreeShape(tuple(ordered))


def check_acceptance(acceptance: AcceptanceTable) -> None:
    """Refuse what are no probabilities by depth and rank.

    Raises:
        TreespecError: A row is empty or of another length, or no set of probabilities
            of exclusive events.
    """
    if not len(acceptance) or len({len(row) for row in acceptance}) != 1:
        raise TreespecError(
            "acceptance must have the same number of ranks at every depth, and at "
            f"least one depth, got {[len(row) for row in acceptance]}"
        )
    for depth, row in enumerate(acceptance):
        # Ranks exclude each other: one child at most is the accepted one.
        fine = len(row) and all(0 <= a <= 1 for a in row) and sum(row) <= 1 + 1e-9
        if not fine:
            raise TreespecError(
                f"acceptance at depth {depth + 1} must be probabilities with a sum of "
                f"at most 1, got {list(row)}"
            )


def check_num_nodes(name: str, num_nodes: int) -> None:
    """Refuse a shape without nodes, or one of more than ``MAX_NODES``.

    Raises:
        TreespecError: Names the key and the number.
    """
    require_integer(name, num_nodes, 1, f" and at most {MAX_NODES}")
    if num_nodes > MAX_NODES:
        raise TreespecError(f"{name} must be at most {MAX_NODES}, got {num_nodes}")


def _likeliest_first(
    acceptance: AcceptanceTable, exists: Callable[[RankPath], bool], most: int
) -> list[RankPath]:
    """Return existing paths by value, parents and earlier siblings first."""
    found: list[RankPath] = []
    heap: list[tuple[float, int, RankPath]] = []
    if exists((0,)):
        heap.append((-path_value(acceptance, (0,)), 1, (0,)))
    while heap and len(found) < most:
        negative, _, path = heapq.heappop(heap)
        found.append(path)
        depth = len(path)
        above = path_value(acceptance, path[:-1])
        child, sibling = (*path, 0), (*path[:-1], path[-1] + 1)
        if exists(child):
            value = negative * _row(acceptance, depth)[0]
            heapq.heappush(heap, (value, depth + 1, child))
        if exists(sibling):
            value = -above * _row(acceptance, depth - 1)[sibling[-1]]
            heapq.heappush(heap, (value, depth, sibling))
    return found


def _needs(path: RankPath) -> list[RankPath]:
    """Return the paths without which a path is no node: parent, earlier sibling."""
    *above, rank = path
    earlier = [(*above, rank - 1)] if rank else []
    return [tuple(above), *earlier]


def _is_path(path: object) -> bool:
    return (
        isinstance(path, tuple)
        and len(path) > 0
        and all(type(rank) is int and rank >= 0 for rank in path)
    )


def _row(acceptance: AcceptanceTable, depth: int) -> Sequence[float]:
    return acceptance[min(depth, len(acceptance) - 1)]


def _not_paths(given: object) -> TreespecError:
    return TreespecError(
        f"policy.paths must be a list of lists of ranks >= 0, got {given!r}; write "
        "policy.paths=[[0],[1],[0,0]]"
    )
