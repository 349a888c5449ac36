"""Are draft probabilities those of acceptance, and forecasts those of what happened?"""

from __future__ import annotations

import numpy as np
import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import (
    by_run,
    exploded,
    frame_with,
    mean_columns,
    rate_columns,
    speculative_steps,
)
from treespec.errors import require_integer


def reliability(results: Results, num_bins: int = 10) -> pd.DataFrame:
    """Return how often judged nodes were accepted, by their draft probability.

    A drafter is calibrated if ``rate`` is ``mean_prob`` in every bin. Judged are the
    children of the nodes that the committed text went through.

    Args:
        results: The runs.
        num_bins: Equally wide bins from 0 to 1.

    Returns:
        ``run``, ``source``, ``bin``, ``mean_prob``, ``num_judged``, ``num_accepted``,
        ``rate``, ``low``, ``high``; bins without nodes are left out.
    """
    require_integer("num_bins", num_bins, 1)
    columns = ["judged_sources", "judged_probs", "judged_accepted"]
    judged = exploded(speculative_steps(results), columns)
    probs = judged["judged_probs"].to_numpy(dtype=float)
    judged["bin"] = np.minimum((probs * num_bins).astype(int), num_bins - 1)
    rows = []
    for run, nodes in by_run(judged, results):
        for (source, number), bin_nodes in nodes.groupby(["judged_sources", "bin"]):
            num_hits = int(bin_nodes["judged_accepted"].sum())
            rows.append(
                {
                    "run": run,
                    "source": source,
                    "bin": int(str(number)),
                    "mean_prob": float(bin_nodes["judged_probs"].mean()),
                    "num_judged": len(bin_nodes),
                    "num_accepted": num_hits,
                    **rate_columns(num_hits, len(bin_nodes)),
                }
            )
    return frame_with(
        rows,
        [
            *("run", "source", "bin", "mean_prob", "num_judged", "num_accepted"),
            *("rate", "low", "high"),
        ],
    )


def expected_and_realised(
    results: Results,
    expected: str = "expected_accepted",
    realised: str = "num_accepted",
    num_bins: int = 8,
) -> pd.DataFrame:
    """Return what policies forecast of steps next to what came of them.

    Steps are sorted by their forecast and cut into bins of equal size; the interval is
    the normal one of the mean, and takes steps as independent. Left out are steps
    without a forecast, and those at which a limit cut the text.

    Args:
        results: The runs.
        expected: Column of ``steps`` with the forecast: ``expected_accepted``, or
            ``expected_s`` with ``realised="step_s"``.
        realised: Column of ``steps`` with what it was a forecast of.
        num_bins: Most bins.

    Returns:
        ``run``, ``bin``, ``num_steps``, ``expected``, ``realised``, ``low``, ``high``.
    """
    require_integer("num_bins", num_bins, 1)
    steps = speculative_steps(results)
    known = steps[steps[expected].notna() & steps[realised].notna()]
    if realised == "num_accepted":  # where a text was cut, what came is not known
        known = known[known["next_kind"].notna()]
    rows = []
    for run, of_run in by_run(known, results):
        order = of_run[expected].to_numpy(dtype=float).argsort(kind="stable")
        for number, chosen in enumerate(np.array_split(order, num_bins)):
            if not len(chosen):
                continue
            part = of_run.iloc[chosen]
            mean = mean_columns(part[realised].to_numpy(dtype=float))
            rows.append(
                {
                    "run": run,
                    "bin": number,
                    "num_steps": len(part),
                    "expected": float(part[expected].mean()),
                    "realised": mean["mean"],
                    "low": mean["low"],
                    "high": mean["high"],
                }
            )
    columns = ("run", "bin", "num_steps", "expected", "realised", "low", "high")
    return frame_with(rows, columns)
