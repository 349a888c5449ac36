"""What controllers that move a depth have in common."""

from __future__ import annotations

from treespec.errors import TreespecError, require_integer
from treespec.types import Budget


def budget_of_depth(depth: int, max_width: int, max_nodes: int | None) -> Budget:
    """Return the budget of a depth.

    Args:
        depth: Deepest node.
        max_width: Most nodes in one layer.
        max_nodes: Most nodes in all; ``None`` gives every layer its full width.
    """
    if max_nodes is None:
        max_nodes = depth * max_width
    return Budget(depth, max_width, max_nodes)


def check_depths(min_depth: int, start_depth: int, max_depth: int) -> None:
    """Refuse depths that are not in order.

    Raises:
        TreespecError: Names the key, the rule and the value.
    """
    off = "; controller=off_switch turns speculation off and on again"
    require_integer("controller.min_depth", min_depth, 1, off)
    require_integer("controller.max_depth", max_depth, min_depth)
    require_integer("controller.start_depth", start_depth, min_depth)
    if start_depth > max_depth:
        raise TreespecError(
            f"controller.start_depth must be at most controller.max_depth={max_depth}, "
            f"got {start_depth}"
        )
