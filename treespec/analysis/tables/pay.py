"""When speculation pays, by what steps took and what they brought."""

from __future__ import annotations

import numpy as np
import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import (
    NAN,
    Row,
    by_run,
    frame_with,
    mean_columns,
    speculative_steps,
)
from treespec.errors import TreespecError
from treespec.stats import Floats

MIN_STEPS = 10
"""Steps below which nothing is said of a size."""

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
        95% interval ``low`` to ``high``, ``pays`` (``yes``, ``no``, ``unsure`` where
        the interval holds the break-even or steps are few, ``no tree``).
    """
    rows = []
    timed = results.steps[results.steps["step_s"].notna()]
    for run, steps in by_run(timed, results):
        plain = steps[steps["mode"] == "baseline"]
        plain_s = float(plain["step_s"].median()) if len(plain) else NAN
        speculative = steps[steps["mode"] == "speculative"]
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
                    "pays": _verdict(part, mean, least),
                }
            )
    return frame_with(rows, _COLUMNS)


def _verdict(steps: pd.DataFrame, mean: Row, least: float) -> str:
    if int(steps["num_nodes"].iloc[0]) == 0:
        return "no tree"
    if len(steps) < MIN_STEPS:
        return "unsure"
    if mean["low"] > least:
        return "yes"
    return "no" if mean["high"] < least else "unsure"


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
    steps = speculative_steps(replayed)
    if costs["run"].nunique() != 1 or steps.empty:
        raise TreespecError(
            "forecast_speedup needs replayed steps and one run with measured ones, got "
            f"{len(steps)} steps and {costs['run'].nunique()} runs; use results.only"
        )
    spent = _seconds(costs, steps["num_nodes"].to_numpy(dtype=float))
    plain_s = float(costs["plain_s"].iloc[0])
    return float(plain_s * steps["num_committed"].sum() / spent.sum())


def forecast_by_depth(results: Results) -> pd.DataFrame:
    """Return the speed-up that each run's trees would have, cut at depth 0, 1, ...

    A first guess before a sweep over ``controller.max_depth``: what was accepted below
    the cut is lost, what was verified below it is saved, at the costs of the run's own
    steps. Steps are taken as they were, though after a cut others would follow.

    Returns:
        ``run``, ``depth``, ``mean_nodes``, ``tokens_per_forward``, ``speedup``,
        ``is_best``; no rows of a run that is not timed on both sides.
    """
    rows = []
    costs = dict(iter(break_even(results).groupby("run")))
    for run, steps in by_run(speculative_steps(results), results):
        if run not in costs or costs[run]["plain_s"].isna().all():
            continue  # without times on both sides there is nothing to forecast with
        plain_s = float(costs[run]["plain_s"].iloc[0])
        accepted = steps["num_accepted"].to_numpy(dtype=int)
        layers = [list(layer) for layer in steps["nodes_by_depth"]]
        for depth in range(int(steps["depth"].max()) + 1):
            nodes = np.array([sum(layer[:depth]) for layer in layers], dtype=float)
            committed = 1 + np.minimum(accepted, depth)
            spent = _seconds(costs[run], nodes)
            rows.append(
                {
                    "run": run,
                    "depth": depth,
                    "mean_nodes": nodes.mean(),
                    "tokens_per_forward": committed.mean(),
                    "speedup": plain_s * committed.sum() / spent.sum(),
                }
            )
    columns = ("run", "depth", "mean_nodes", "tokens_per_forward", "speedup")
    frame = frame_with(rows, columns)
    best = frame.groupby("run")["speedup"].transform("max")
    return frame.assign(is_best=frame["speedup"] == best)


def _seconds(costs: pd.DataFrame, num_nodes: Floats) -> Floats:
    """Return what steps with trees of these sizes take, by the measured ones."""
    sizes, seconds = costs["num_nodes"].to_numpy(float), costs["step_s"].to_numpy(float)
    if sizes[0] > 0:
        sizes = np.concatenate([[0.0], sizes])
        seconds = np.concatenate([costs["plain_s"].to_numpy(float)[:1], seconds])
    # A larger tree never costs less: what says so is noise.
    seconds = np.maximum.accumulate(seconds)
    spent: Floats = np.interp(num_nodes, sizes, seconds)
    if len(sizes) > 1:
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        spent = spent + slope * np.clip(num_nodes - sizes[-1], 0, None)
    return spent
