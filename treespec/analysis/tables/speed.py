"""How fast, for which tree, for which kind of text, and how evenly."""

from __future__ import annotations

import numpy as np
import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import NAN, Row, by_run, frame_with
from treespec.comparisons import compare_all
from treespec.datasets.base import prompt_id
from treespec.metrics import BOOTSTRAP_SEED, MIN_PROMPTS_FOR_INTERVAL, PLAIN
from treespec.stats import Floats, bootstrap_interval

ALL = "all"
"""Category of the row that pools all prompts of a run."""
_COMPARED = (
    "run",
    "other",
    "num_prompts",
    "ratio",
    "low",
    "high",
    "p_value",
    "adjusted_p_value",
    "detectable",
)
_KIND = (
    "target",
    "draft",
    "dtype",
    "acceptance",
    "verifier",
    "temperature",
    "baseline",
)
"""Columns of ``runs`` that make a run of another kind, whatever its trees' size."""
_DECODED = ["baseline_decode_s", "baseline_decoded", "decode_s", "decoded"]


def speed_by_nodes(results: Results) -> pd.DataFrame:
    """Return the speed of finished runs by the nodes that a step verified on average.

    Runs that differ in nothing but the size of their trees form one ``series``, named
    by drafter, policy and what else tells it from the others; ``is_peak`` marks its
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
            "series": _series(known),
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


def _series(runs: pd.DataFrame) -> pd.Series:
    """Return what each run is called with all others of its kind."""
    names = runs["drafter"].fillna("?") + " + " + runs["policy"].fillna("?")
    for column in _KIND:
        words = runs[column].astype("string").fillna("?")
        if words.nunique() > 1:
            names = names + ", " + words
    return names


def speedup_by_category(results: Results) -> pd.DataFrame:
    """Return the speed-up of every category and of all prompts, with intervals.

    Baseline over speculative seconds per decoded token, as ``speedup`` in
    ``summary.json``; the interval is the paired BCa bootstrap over prompts, NaN for
    fewer than five.

    Returns:
        ``run``, ``category``, ``num_prompts``, ``speedup``, ``low``, ``high``.
    """
    rows = []
    for run, of_run in by_run(_by_prompt(results), results):
        groups: list[tuple[str, pd.DataFrame]] = [(ALL, of_run)]
        groups += [(str(name), part) for name, part in of_run.groupby("category")]
        for category, part in groups:
            numbers = _speedup(part[_DECODED].to_numpy(dtype=float))
            row = {"run": run, "category": category, "num_prompts": len(part)}
            rows.append({**row, **numbers})
    columns = ("run", "category", "num_prompts", "speedup", "low", "high")
    return frame_with(rows, columns)


def _by_prompt(results: Results) -> pd.DataFrame:
    """Return what every prompt decoded, the turns of a conversation summed.

    Returns:
        ``run``, ``prompt``, ``category`` and ``_DECODED``, of prompts that decoded
        something on both sides.
    """
    known = results.prompts
    names = zip(known["id"], known["turn"].fillna(1), strict=True)
    known = known.assign(
        prompt=[prompt_id(str(name), turn) for name, turn in names],
        decoded=known["num_tokens"] - 1,
        baseline_decoded=known["baseline_num_tokens"] - 1,
    )
    known = known[known["speedup"].notna() & known["decode_s"].notna()]
    keys = ["run", "prompt", "category"]
    return known.groupby(keys, sort=False, as_index=False)[_DECODED].sum()


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


def comparisons(results: Results) -> pd.DataFrame:
    """Return every pair of finished runs, on the prompts that both decoded.

    Speed-ups over different baselines do not compare: of a sweep with several the runs
    over the first are taken.

    Returns:
        ``run``, ``other``, ``num_prompts``, ``ratio`` (geometric mean of the first's
        speed-ups over the second's), ``low``, ``high``, ``p_value`` (a sign-flip test),
        ``adjusted_p_value`` (Holm, for all pairs), ``detectable`` (the least relative
        difference that these prompts would show most of the time).
    """
    rows = [
        {
            "run": pair.run,
            "other": pair.other,
            "num_prompts": pair.num_prompts,
            "ratio": pair.ratio,
            "low": None if pair.interval is None else pair.interval.low,
            "high": None if pair.interval is None else pair.interval.high,
            "p_value": pair.p_value,
            "adjusted_p_value": pair.adjusted_p_value,
            "detectable": pair.detectable,
        }
        for pair in compare_all(speedups_of(results))
    ]
    return frame_with(rows, _COMPARED).astype(dict.fromkeys(_COMPARED[3:], float))


def speedups_of(results: Results) -> dict[str, dict[str, float]]:
    """Return the speed-up of every prompt of every finished run, by run and id.

    All are over one baseline, that of the first finished run.
    """
    done = results.runs[results.runs["status"] == "done"]
    baselines = done["baseline"].fillna(PLAIN)
    finished = set(done.loc[baselines == baselines.iloc[0], "run"] if len(done) else ())
    return {
        run: dict(
            zip(
                prompts["prompt"],
                _ratio(prompts[_DECODED].to_numpy(dtype=float)).tolist(),
                strict=True,
            )
        )
        for run, prompts in by_run(_by_prompt(results), results)
        if run in finished
    }


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
