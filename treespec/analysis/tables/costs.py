"""What forwards cost by their rows, and the least that they could."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import NAN, by_run, frame_with
from treespec.costs import Costs
from treespec.profile import Profile

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows of a forward that a cost curve shows by default."""


def cost_profile(profile: Profile) -> pd.DataFrame:
    """Return a profile's timed forwards next to their fit and the machine's limit.

    Returns:
        ``model``, ``num_rows``, ``length``, ``seconds``, ``fitted``, ``floor`` (NaN
        where the machine's limit was not measured).
    """
    models = (
        ("target", profile.target, profile.costs.target, profile.target_roofline),
        ("draft", profile.draft, profile.costs.draft, profile.draft_roofline),
    )
    rows = [
        {
            "model": name,
            "num_rows": point.num_rows,
            "length": point.length,
            "seconds": point.seconds,
            "fitted": fitted(point.num_rows, point.length),
            "floor": NAN if floor is None else floor.floor_s(point.num_rows),
        }
        for name, points, fitted, floor in models
        for point in points
    ]
    columns = ("model", "num_rows", "length", "seconds", "fitted", "floor")
    return frame_with(rows, columns)


def cost_curve(costs: Costs, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Return the seconds of forwards of both models, by rows.

    Returns:
        ``model`` (``target`` or ``draft``), ``num_rows``, ``seconds``.
    """
    models = (("target", costs.target), ("draft", costs.draft))
    rows = [
        {"model": name, "num_rows": size, "seconds": seconds(size)}
        for name, seconds in models
        for size in sizes
    ]
    return frame_with(rows, ("model", "num_rows", "seconds"))


def measured_costs(results: Results) -> pd.DataFrame:
    """Return what verifying took in the steps of each run, by rows: medians.

    A tree of N nodes has N + 1 rows. Plain steps of the baseline are those of one row.
    Runs that decoded several requests at once are left out: they share their forwards.

    Returns:
        ``run``, ``num_rows``, ``num_steps``, ``seconds``, ``low``, ``high`` (the
        quartiles).
    """
    several = results.runs.loc[results.runs["max_concurrent"].fillna(1) > 1, "run"]
    steps = results.steps[~results.steps["run"].isin(several)]
    timed = steps.loc[steps["verify_s"].notna(), ["run", "num_nodes", "verify_s"]]
    rows = []
    for run, steps in by_run(timed, results):
        for num_nodes, part in steps.groupby("num_nodes"):
            low, middle, high = np.percentile(
                part["verify_s"].to_numpy(dtype=float), (25, 50, 75)
            )
            rows.append(
                {
                    "run": run,
                    "num_rows": int(str(num_nodes)) + 1,
                    "num_steps": len(part),
                    "seconds": middle,
                    "low": low,
                    "high": high,
                }
            )
    columns = ("run", "num_rows", "num_steps", "seconds", "low", "high")
    return frame_with(rows, columns)


def roofline(curve: pd.DataFrame) -> pd.DataFrame:
    """Return the roofline that a curve's own measurements draw, size by size.

    Reading the weights takes as long as the quickest forward; computing takes rows
    times the cheapest row that was seen. No forward was quicker than the larger of the
    two: where that is the first, further rows are free; where the second, they cost in
    full.

    Args:
        curve: ``num_rows`` and ``seconds`` of one model.

    Returns:
        ``num_rows``, ``seconds``, ``bound`` (``memory`` or ``compute``).
    """
    sizes = curve["num_rows"].to_numpy(dtype=float)
    seconds = curve["seconds"].to_numpy(dtype=float)
    memory_s = seconds.min()
    compute_s = sizes * (seconds / sizes).min()
    return pd.DataFrame(
        {
            "num_rows": curve["num_rows"].to_numpy(),
            "seconds": np.maximum(memory_s, compute_s),
            "bound": np.where(compute_s > memory_s, "compute", "memory"),
        }
    )
