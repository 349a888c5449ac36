"""Static trees as a configuration names them: by hand, or from a calibration's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treespec.calibration import Calibration
from treespec.errors import TreespecError
from treespec.policies.optimal_shape import optimal_shape, planned_shape
from treespec.policies.shape import (
    check_num_nodes,
    comb_shape,
    greedy_shape,
    paths_shape,
    widths_shape,
)
from treespec.policies.static_tree import StaticTree
from treespec.types import ProposalKind

DETERMINISTIC = ProposalKind.DETERMINISTIC


def given_tree(
    widths: Sequence[int] | None = None,
    paths: Sequence[Sequence[int]] | None = None,
    proposal: ProposalKind = DETERMINISTIC,
) -> StaticTree:
    """Return the tree of a shape that is written down, as widths or as paths.

    Args:
        widths: Children of each node at depth 0, 1, ...
        paths: Nodes by the ranks that lead to them, the most valuable first.
        proposal: How children come about.

    Raises:
        TreespecError: Both are given, or neither, or it makes no tree.
    """
    if (widths is None) == (paths is None):
        raise TreespecError(
            "policy needs either policy.widths=[4,2,1] or policy.paths=[[0],[1],[0,0]]"
            f", got {'neither' if widths is None else 'both'}"
        )
    shape = widths_shape(widths) if widths is not None else paths_shape(paths)
    return StaticTree(shape, proposal)


def comb_tree(
    num_ranks: int = 8, depth: int = 4, proposal: ProposalKind = DETERMINISTIC
) -> StaticTree:
    """Return the tree that ``treespec calibrate`` measures with.

    Args:
        num_ranks: Children of the root and of every first child.
        depth: Deepest node.
        proposal: How children come about.
    """
    return StaticTree(comb_shape(num_ranks, depth), proposal)


def geometric_tree(
    num_nodes: int,
    max_depth: int,
    max_children: int,
    first: float,
    ratio: float,
    proposal: ProposalKind = DETERMINISTIC,
) -> StaticTree:
    """Return Medusa's tree for accuracies that fall by the same factor at every rank.

    A shape to start with where nothing was measured yet.

    Args:
        num_nodes: Nodes, root excluded.
        max_depth: Deepest node.
        max_children: Most children of one node.
        first: Accuracy of rank 0.
        ratio: Accuracy of a rank as a share of that of the one before it.
        proposal: How children come about.
    """
    for name, value in (("first", first), ("ratio", ratio)):
        if not isinstance(value, int | float) or not 0 < value < 1:
            raise TreespecError(f"policy.{name} must be in (0, 1), got {value!r}")
    check_num_nodes("policy.max_children", max_children)
    if first > 1 - ratio:
        raise TreespecError(
            f"policy.first must be at most 1 - policy.ratio = {1 - ratio:g}, so that "
            f"the accuracies have no sum above 1, got {first!r}"
        )
    row = [first * ratio**rank for rank in range(max_children)]
    return StaticTree(greedy_shape([row], num_nodes, max_depth, max_children), proposal)


def calibrated_tree(
    calibration: str, num_nodes: int, proposal: ProposalKind = DETERMINISTIC
) -> StaticTree:
    """Return Medusa's tree (2401.10774) for the accuracies that were measured.

    As deep and as wide as the calibration at most.

    Args:
        calibration: A file that ``treespec calibrate`` has written.
        num_nodes: Nodes, root excluded.
        proposal: How children come about: as in the calibration.

    Raises:
        TreespecError: The file cannot be used, or its ranks are too few.
    """
    measured = _read(calibration)
    shape = greedy_shape(
        measured.acceptance_by_depth, num_nodes, measured.depth, measured.num_ranks
    )
    if shape.num_nodes < num_nodes:
        raise TreespecError(
            f"policy.num_nodes is {num_nodes}, but {calibration} has {measured.depth} "
            f"depths and {measured.num_ranks} ranks, enough for {shape.num_nodes} "
            "nodes; ask for fewer, or calibrate with a larger policy.num_ranks and "
            "policy.depth"
        )
    return StaticTree(shape, proposal)


def optimal_tree(
    calibration: str,
    num_nodes: int | None = None,
    max_depth: int = 10,
    proposal: ProposalKind = DETERMINISTIC,
) -> StaticTree:
    """Return Sequoia's tree (2402.12374) for the acceptance that was measured.

    Acceptance is pooled over depths, so that the tree may be deeper than the
    calibration. Nodes of ranks that were never accepted are left out.

    Args:
        calibration: A file that ``treespec calibrate`` has written.
        num_nodes: Most nodes, root excluded; ``None`` for the size and depth that cost
            least per token by the calibration's cost table.
        max_depth: Deepest node.
        proposal: How children come about: as in the calibration.

    Raises:
        TreespecError: The file cannot be used, or has no costs.
    """
    measured = _read(calibration)
    acceptance = [measured.acceptance]
    if num_nodes is not None:
        return StaticTree(optimal_shape(acceptance, num_nodes, max_depth), proposal)
    if measured.costs is None:
        raise TreespecError(
            f"policy.num_nodes is null, but {calibration} has no costs to choose it "
            "by; give policy.num_nodes=N"
        )
    plan = planned_shape(acceptance, measured.costs, max_depth)
    return StaticTree(plan.shape, proposal)


def _read(calibration: object) -> Calibration:
    if not isinstance(calibration, str) or not calibration:
        raise TreespecError(
            f"policy.calibration must be a file, got {calibration!r}; treespec "
            "calibrate writes one"
        )
    try:
        return Calibration.read(Path(calibration).expanduser())
    except TreespecError as error:
        raise TreespecError(f"policy.calibration: {error}") from error
