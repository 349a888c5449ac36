"""How fast, for which tree, for which kind of text, and how evenly."""

from __future__ import annotations

import numpy as np
import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import NAN, Row, by_run, frame_with
from treespec.metrics import BOOTSTRAP_SEED, MIN_PROMPTS_FOR_INTERVAL
from treespec.stats import Floats, bootstrap_interval

ALL = "all"
"""Category of the row that pools all prompts of a run."""
_DECODED = ["baseline_decode_s", "baseline_decoded", "decode_s", "decoded"]


def speed_by_nodes(results: Results) -> pd.DataFrame:
    """Return the speed of finished runs by the nodes that a step verified on average.

    Runs with the same drafter and policy form one ``series``; ``is_peak`` marks its
    fastest run.

    Returns:
        ``run``, ``series``, ``mean_nodes``, ``speedup``, ``low``, ``high``,
        ``tokens_per_second``, ``num_prompts``, ``is_peak``; sorted by ``mean_nodes``.
    """
    runs = results.runs
    known = runs[runs["mean_nodes"].notna() & runs["speedup"].notna()]
    frame = pd.DataFrame(
        {
            "run": known["run"],
            "series": known["drafter"].fillna("?")
            + " + "
            + known["policy"].fillna("?"),
            "mean_nodes": known["mean_nodes"],
            "speedup": known["speedup"],
            "low": known["speedup_low"],
            "high": known["speedup_high"],
            "tokens_per_second": known["tokens_per_second"],
            "num_prompts": known["num_prompts"],
        }
    ).sort_values(["series", "mean_nodes"], ignore_index=True)
    best = frame.groupby("series")["speedup"].transform("max")
    return frame.assign(is_peak=frame["speedup"] == best)


def speedup_by_category(results: Results) -> pd.DataFrame:
    """Return the speed-up of every category and of all prompts, with intervals.

    Baseline over speculative seconds per decoded token, as ``speedup`` in
    ``summary.json``; the interval is the paired BCa bootstrap over prompts, NaN for
    fewer than five.

    Returns:
        ``run``, ``category``, ``num_prompts``, ``speedup``, ``low``, ``high``.
    """
    prompts = results.prompts
    decoded = prompts.assign(
        decoded=prompts["num_tokens"] - 1,
        baseline_decoded=prompts["baseline_num_tokens"] - 1,
        prompt=[
            str(name).removesuffix(f"/{turn}")
            for name, turn in zip(prompts["id"], prompts["turn"].fillna(1), strict=True)
        ],
    )
    decoded = decoded[decoded["speedup"].notna() & decoded["decode_s"].notna()]
    rows = []
    for run, of_run in by_run(decoded, results):
        groups: list[tuple[str, pd.DataFrame]] = [(ALL, of_run)]
        groups += [(str(name), part) for name, part in of_run.groupby("category")]
        for category, part in groups:
            # The turns of a conversation are one prompt.
            sums = part.groupby("prompt", sort=False)[_DECODED].sum()
            numbers = _speedup(sums.to_numpy(dtype=float))
            row = {"run": run, "category": category, "num_prompts": len(sums)}
            rows.append({**row, **numbers})
    columns = ("run", "category", "num_prompts", "speedup", "low", "high")
    return frame_with(rows, columns)


def _speedup(rows: Floats) -> Row:
    interval = None
    if len(rows) >= MIN_PROMPTS_FOR_INTERVAL:
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        interval = bootstrap_interval(rows, _ratio, rng)
    return {
        "speedup": float(_ratio(rows.sum(axis=0))),
        "low": NAN if interval is None else interval.low,
        "high": NAN if interval is None else interval.high,
    }


def _ratio(sums: Floats) -> Floats:
    ratio: Floats = (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
    return ratio


def latencies(results: Results) -> pd.DataFrame:
    """Return every request's milliseconds from admission to its last token, sorted.

    Returns:
        ``run``, ``mode``, ``latency_ms``, ``share`` (of the mode's requests that took
        no longer).
    """
    known = results.prompts[results.prompts["decode_s"].notna()]
    frames = []
    for run, prompts in by_run(known, results):
        for mode, prefix in (("speculative", ""), ("baseline", "baseline_")):
            seconds = prompts[f"{prefix}prefill_s"] + prompts[f"{prefix}decode_s"]
            values = np.sort(1e3 * seconds.to_numpy(dtype=float))
            share = np.arange(1, len(values) + 1) / len(values)
            frames.append(
                pd.DataFrame(
                    {"run": run, "mode": mode, "latency_ms": values, "share": share}
                )
            )
    empty = frame_with([], ("run", "mode", "latency_ms", "share"))
    return pd.concat(frames, ignore_index=True) if frames else empty
