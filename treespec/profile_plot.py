"""A profile as a picture, if matplotlib is there."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treespec.costs import CostCurve
from treespec.profile import Point, Profile
from treespec.profile_cache import KeptProfile
from treespec.roofline import Roofline

NUM_POINTS = 200
"""Points of a drawn curve."""
HOW_TO_GET_IT = "for a plot of it: pip install 'treespec[analysis]'"


def plot_kept(kept: KeptProfile) -> str:
    """Draw a profile beside its file, if it is not there yet.

    Returns:
        Where it is, or how to get it.
    """
    path = kept.path.with_suffix(".svg")
    if not kept.is_new and path.is_file():
        return str(path)
    if not kept.path.parent.is_dir():
        return "no plot: the cache cannot be written"
    return str(path) if plot_profile(kept.profile, path) else HOW_TO_GET_IT


def plot_profile(profile: Profile, path: Path) -> bool:
    """Draw a profile's forwards, their fit and their floor as SVG.

    Returns:
        Whether it was drawn: without matplotlib it is not.

    Raises:
        OSError: The disk refuses.
    """
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # noqa: PLC0415 (optional, and slow to load)

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    sides = (
        ("target", profile.costs.target_curve, profile.target, profile.target_roofline),
        ("drafter", profile.costs.draft_curve, profile.draft, profile.draft_roofline),
    )
    for axis, (title, curve, points, roofline) in zip(axes, sides, strict=True):
        _draw(axis, curve, points, roofline)
        axis.set(title=title, xlabel="rows", ylabel="ms", xscale="log", yscale="log")
        axis.legend()
    figure.savefig(path, format="svg")
    return True


def _draw(
    axis: Any, curve: CostCurve, points: Sequence[Point], roofline: Roofline | None
) -> None:
    """Draw one side; rows are spread evenly on the logarithmic axis."""
    most = curve.rows[-1]
    rows = sorted({round(most ** (i / NUM_POINTS)) for i in range(NUM_POINTS + 1)})
    for length in sorted({point.length for point in points}):
        own = [point for point in points if point.length == length]
        drawn = axis.plot(
            [point.num_rows for point in own],
            [1000 * point.seconds for point in own],
            "o",
            label=f"after {length} tokens",
        )
        fit = [1000 * curve.at(num_rows, length) for num_rows in rows]
        axis.plot(rows, fit, color=drawn[0].get_color())
    if roofline is not None:
        floor = [1000 * roofline.floor_s(num_rows) for num_rows in rows]
        axis.plot(rows, floor, "--", color="black", label="floor")
