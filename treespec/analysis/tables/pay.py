"""When speculation pays, by what steps took and what they brought."""

from __future__ import annotations

import numpy as np
import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import (
    NAN,
    by_run,
    frame_with,
    is_word,
    mean_columns,
)
from treespec.errors import TreespecError

_COLUMNS = (
    *("run", "num_nodes", "num_steps", "step_s", "plain_s"),
    *("break_even", "accepted", "low", "high", "pays"),
)


def break_even(results: Results) -> pd.DataFrame:
    """Return how many drafts a step must keep to pay for its tree, and how many it did.

    A step commits its accepted tokens plus one, so it beats plain decoding if it keeps
    more than ``step_s / plain_s - 1`` of its drafts. By the size of the tree that was
    verified; steps without a tree have paid for nothing but looking.

    Returns:
        ``run``, ``num_nodes``, ``num_steps``, ``step_s`` (median), ``plain_s`` (median
        of the baseline's steps), ``break_even``, ``accepted`` (mean) with its normal
        95% interval ``low`` to ``high``, ``pays`` (``yes``, ``no`` or ``unsure``: the
        interval holds the break-even).
    """
    rows = []
    for run, steps in by_run(results.steps, results):
        plain = steps[is_word(steps["mode"], "baseline")]
        plain_s = float(plain["step_s"].median()) if len(plain) else NAN
        speculative = steps[is_word(steps["mode"], "speculative")]
        for num_nodes, part in speculative.groupby("num_nodes"):
            step_s = float(part["step_s"].median())
            least = step_s / plain_s - 1
            mean = mean_columns(part["num_accepted"].to_numpy(dtype=float))
            rows.append(
                {
                    "run": run,
                    "num_nodes": int(str(num_nodes)),
                    "num_steps": len(part),
                    "step_s": step_s,
                    "plain_s": plain_s,
                    "break_even": least,
                    "accepted": mean["mean"],
                    "low": float(np.maximum(mean["low"], 0.0)),
                    "high": mean["high"],
                    "pays": _verdict(mean["low"], mean["high"], least),
                }
            )
    return frame_with(rows, _COLUMNS)


def _verdict(low: float, high: float, least: float) -> str:
    if low > least:
        return "yes"
    return "no" if high < least else "unsure"


def forecast_speedup(replayed: Results, measured: Results) -> float:
    """Return the speed-up that replayed steps would have at the costs of a run's steps.

    A forecast and no measurement: a step is charged the median of the measured steps
    whose tree had as many nodes, interpolated between sizes, and beyond the largest one
    by the last two.

    Args:
        replayed: One run without seconds, from ``replay``.
        measured: One run with seconds.

    Raises:
        TreespecError: No step was measured, or none replayed.
    """
    costs = break_even(measured)
    steps = replayed.steps
    if costs["run"].nunique() != 1 or steps.empty:
        raise TreespecError(
            "forecast_speedup needs replayed steps and one run with measured ones, got "
            f"{len(steps)} steps and {costs['run'].nunique()} runs; use results.only"
        )
    plain_s = float(costs["plain_s"].iloc[0])
    sizes = np.array([0.0, *costs["num_nodes"]])
    seconds = np.array([plain_s, *costs["step_s"]])
    if 0 in set(costs["num_nodes"]):
        sizes, seconds = sizes[1:], seconds[1:]
    # A larger tree never costs less: what says so is noise.
    seconds = np.maximum.accumulate(seconds)
    wanted = steps["num_nodes"].to_numpy(dtype=float)
    spent = np.interp(wanted, sizes, seconds)
    if len(sizes) > 1:
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        spent += slope * np.clip(wanted - sizes[-1], 0, None)
    return float(plain_s * steps["num_committed"].sum() / spent.sum())
