"""Where the nodes of a tree stand in a picture: pure, from parents to places.

Knows nothing of tokens or of what draws: the page, the SVG and the terminal share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of nodes, in units of one sibling and one generation.

    Attributes:
        x: Across the tree, from 0; nodes of one depth are at least 1 apart, siblings
            in draw order.  # [N]
        y: Depth, 0 at the root.  # [N]
    """

    x: tuple[float, ...]
    y: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branches:
    """What an outline draws in front of a node.

    Attributes:
        fork: Before a node with younger siblings.
        last: Before the last one of its siblings.
        along: Below a node with younger siblings.
        blank: Below a last one.
    """

    fork: str
    last: str
    along: str
    blank: str


ASCII = Branches("|- ", "`- ", "|  ", "   ")
LINES = Branches("├─ ", "╰─ ", "│  ", "   ")


@dataclass(frozen=True, slots=True)
class OutlineRow:
    """One line of an outline: a node and the branch in front of it."""

    node: int
    branch: str


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return each node's children in draw order.

    Args:
        parents: Parent ids, -1 for the root, ``parents[i] < i``.  # [N]
    """
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents[1:], start=1):
        children[parent].append(node)
    return children


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return each node's depth, 0 for the root."""
    depths = [0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        depths[node] = depths[parent] + 1
    return depths


def tidy_tree(parents: Sequence[int]) -> Layout:
    """Return a tidy drawing of a tree, after Reingold and Tilford (1981).

    Nodes of one depth stand on one line in the order of their parents, so that no
    branches cross; parents stand in the middle above their children; equal subtrees
    are drawn alike; subtrees are pushed together until they touch.

    Args:
        parents: Parent ids, -1 for the root, ``parents[i] < i``.  # [N]
    """
    children = children_of(parents)
    offsets = [0.0] * len(parents)
    outlines: dict[int, _Outline] = {}
    for node in reversed(range(len(parents))):
        shifts: list[float] = []
        below = _Outline([], [])
        for child in children[node]:
            shifts.append(below.push(outlines.pop(child)))
        middle = (shifts[0] + shifts[-1]) / 2 if shifts else 0.0
        for child, shift in zip(children[node], shifts, strict=True):
            offsets[child] = shift - middle
        outlines[node] = below.under(middle)
    x = [0.0] * len(parents)
    for node, parent in enumerate(parents[1:], start=1):
        x[node] = x[parent] + offsets[node]
    least = min(x, default=0.0)
    return Layout(tuple(place - least for place in x), tuple(depths_of(parents)))


@dataclass(slots=True)
class _Outline:
    """How far a subtree, or a row of them, reaches to both sides at every depth."""

    left: list[float]
    right: list[float]

    def push(self, other: _Outline) -> float:
        """Put a subtree to the right of what is there, and return how far."""
        gaps = zip(self.right, other.left, strict=False)
        shift = max((right - left for right, left in gaps), default=-1.0) + 1.0
        self.left += [place + shift for place in other.left[len(self.left) :]]
        rest = self.right[len(other.right) :]
        self.right = [place + shift for place in other.right] + rest
        return shift

    def under(self, middle: float) -> _Outline:
        """Return the outline with a parent above ``middle``, which becomes 0."""
        left = [0.0, *(place - middle for place in self.left)]
        return _Outline(left, [0.0, *(place - middle for place in self.right)])


def outline(parents: Sequence[int], branches: Branches = LINES) -> list[OutlineRow]:
    """Return the nodes depth first, each with the branch in front of it.

    Args:
        parents: Parent ids, -1 for the root, ``parents[i] < i``.  # [N]
        branches: What to draw the branches with.
    """
    children = children_of(parents)
    rows = []
    # The node, the branch in front of it, and what its children's branches begin with.
    waiting = [(0, "", "")] if parents else []
    while waiting:
        node, branch, below = waiting.pop()
        rows.append(OutlineRow(node, branch))
        for child in reversed(children[node]):
            last = child == children[node][-1]
            own = branches.last if last else branches.fork
            rest = branches.blank if last else branches.along
            waiting.append((child, below + own, below + rest))
    return rows
