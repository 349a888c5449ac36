"""Summaries that claim no speed: those of jobs that shared their device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treespec.metrics import Summary

NUM_JOBS_BESIDE = "num_jobs_beside"
"""Key of a summary: other jobs that ran on the same device at some time of the run;
``None`` if that could not be known."""

SPEEDS = frozenset(
    {
        "speedup",
        "speedup_ci95",
        "speedup_geomean",
        "speedup_geomean_ci95",
        "speedup_spread",
        "detectable_speedup",
        "tokens_per_second",
        "baseline_tokens_per_second",
        "throughput_rps",
        "time_share",
        "latency_ms",
        "baseline_latency_ms",
        "inter_token_ms",
        "ttft_ms",
        "step_time_ratio",
        "median_step_time_ratio",
        *(
            f"{side}{name}"
            for side in ("", "baseline_")
            for name in ("prefill_s", "decode_s", "token_times_s")
        ),
    }
)
"""Names of numbers that are times, or made of times."""


def with_neighbours(summary: Summary, num_jobs_beside: int | None) -> Summary:
    """Return a summary that says who ran beside it; without speeds, if anyone did."""
    kept = without_speeds(summary) if num_jobs_beside else summary
    return {**kept, NUM_JOBS_BESIDE: num_jobs_beside}


def without_speeds(summary: Mapping[str, Any]) -> Summary:
    """Return a summary whose every speed is ``None``, also those of its categories."""
    kept = {n: _none(v) if n in SPEEDS else v for n, v in summary.items()}
    for name in kept.keys() & {"forecast", "repeats"}:
        kept[name] = without_speeds(kept[name])
    if "categories" in kept:
        groups = kept["categories"].items()
        kept["categories"] = {name: without_speeds(group) for name, group in groups}
    return kept


def _none(value: Any) -> Any:
    return dict.fromkeys(value) if isinstance(value, Mapping) else None
