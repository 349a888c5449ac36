"""The final table: every line says in a few words what its number means."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any, TextIO

from treespec.forecasts import off_share
from treespec.metrics import MIN_PROMPTS_FOR_INTERVAL, PLAIN, Summary
from treespec.outcome import PromptOutcome
from treespec.sinks.base import AbstractSink, RunInfo, RunStatus
from treespec.sinks.lines import (
    LABEL,
    MEANING,
    WIDTH,
    milliseconds,
    number,
    percent,
    row,
    times,
)
from treespec.sinks.verdict import (
    divergences_lines,
    measure_line,
    quality_lines,
    verdict_lines,
    without,
)
from treespec.untimed import NUM_JOBS_BESIDE

_MAX_REASONS = 3
_MAX_DEPTHS = 8
_UNEVEN = 1.5
_NOISY = 0.05


class TerminalSink(AbstractSink):
    """Prints the table of a run when it ends.

    Args:
        stream: Where to print; ``None`` is the standard output of the moment.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._folder = Path()

    def check(self, folder: Path) -> None:
        """Accept everything: a terminal needs nothing."""

    def open(self, run: RunInfo) -> None:
        """Remember where the run's files are."""
        self._folder = run.folder

    def prompt(self, outcome: PromptOutcome) -> None:
        """Print nothing: progress is shown by whoever decodes."""

    def close(self, summary: Summary | None, status: RunStatus) -> None:
        """Print the table, if there are numbers, and where everything else is."""
        if summary is None:
            return
        stream = self._stream or sys.stdout
        print(f"\n{render(summary)}\n", file=stream)
        print(row("Files", str(self._folder), ""), file=stream, flush=True)


def render(summary: Summary) -> str:
    """Return the table of a summary: plain text, at most 88 columns wide."""
    return "\n".join(
        [
            *_speed_or_why_not(summary),
            *_acceptance(summary),
            *_optimum(summary),
            *_forecast(summary["forecast"]),
            *_off(summary["reason_share"]),
            *([] if summary.get(NUM_JOBS_BESIDE) else _time(summary)),
            *_disturbance(summary),
            *_repeats(summary["repeats"]),
            "",
            *_categories(summary),
            "",
            *verdict_lines(summary["lossless"], summary["baseline"]),
            *quality_lines(summary),
            *(measure_line(name, found) for name, found in summary["quality"].items()),
            *divergences_lines(summary["divergences"]),
        ]
    )


def _speed_or_why_not(summary: Summary) -> list[str]:
    """Tell the speed, or which other jobs made it no speed of this one."""
    num_jobs = summary.get(NUM_JOBS_BESIDE)
    if not num_jobs:
        return _speed(summary)
    jobs = "another job" if num_jobs == 1 else f"{num_jobs} other jobs"
    return [
        row("Speed-up", "untold", f"{jobs} ran beside it on the same device; run it"),
        row("", "", "again alone, with force=true, to time it"),
        _length(summary),
    ]


def _length(summary: Summary) -> str:
    return row(
        "Tokens/forward",
        number(summary["mean_acceptance_length"], 2),
        "new tokens per target forward (1.00 without speculation)",
    )


def _speed(summary: Summary) -> list[str]:
    interval = summary["speedup_ci95"]
    spread = (
        f"no interval from fewer than {MIN_PROMPTS_FOR_INTERVAL} prompts"
        if interval is None
        else f"95% confidence interval {times(interval[0])} to {times(interval[1])}"
    )
    return [
        row("Speed-up", times(summary["speedup"]), spread),
        *_over(summary["baseline"]),
        *_per_prompt(summary),
        *_resolution(summary),
        row(
            "Tokens/second",
            number(summary["tokens_per_second"], 1),
            f"{number(summary['baseline_tokens_per_second'], 1)} "
            f"{without(summary)}, on the same prompts",
        ),
        _length(summary),
    ]


def _over(baseline: str) -> list[str]:
    """Tell what a speed-up is over, if that is not the decoder's own plain decoding."""
    if baseline == PLAIN:
        return []
    return [row("", "", f"over {baseline}: other code, so not by speculation alone")]


def _per_prompt(summary: Summary) -> list[str]:
    """Tell the mean in which every prompt counts the same, if it has an interval."""
    interval = summary["speedup_geomean_ci95"]
    if interval is None:
        return []
    spread = f"95% interval {times(interval[0])} to {times(interval[1])}"
    mean = times(summary["speedup_geomean"])
    return [row("  by prompt", mean, f"geometric mean over prompts, {spread}")]


def _resolution(summary: Summary) -> list[str]:
    """Tell which speed-ups so many prompts could not have shown."""
    least = summary["detectable_speedup"]
    if least is None or summary["speedup_ci95"] is None:
        return []
    count = summary["num_prompts"]
    words = f"smaller speed-ups cannot be told from none with these {count} prompts"
    return [row("  resolution", percent(least), words)]


def _acceptance(summary: Summary) -> list[str]:
    rates = summary["acceptance_rate_by_depth"][:_MAX_DEPTHS]
    deeper = len(summary["acceptance_rate_by_depth"]) - len(rates)
    lines = [
        row(
            "Drafts kept",
            percent(summary["acceptance_rate"]),
            f"of all drafts that were checked; {number(summary['mean_nodes'], 1)} "
            "per step",
        )
    ]
    if rates:
        steps = "of all steps kept at least 1, 2, ... drafted tokens"
        more = f" (and {deeper} deeper)" if deeper else ""
        lines.append(row("  by depth", " ".join(map(percent, rates)) + more, ""))
        lines.append(row("", "", steps))
    return lines


def _optimum(summary: Summary) -> list[str]:
    """Tell how far the rule is from the best one, if nodes were traced."""
    optimum = summary["optimal_node_acceptance"]
    if optimum is None:
        return []
    realised = percent(summary["node_acceptance"])
    return [
        row("  by node", realised, "of the nodes that were compared kept a child;"),
        row(
            "", "", f"{percent(optimum)} is the most that a lossless rule could expect"
        ),
    ]


def _forecast(forecast: Summary) -> list[str]:
    """Compare what the policy expected with what came, if it expected anything."""
    expected = forecast["expected_accepted_per_step"]
    accepted = forecast["forecast_accepted_per_step"]
    if expected is None or accepted is None:
        return []
    words = f"tokens/forward, {1 + accepted:.2f} came"
    if forecast["step_time_ratio"] is not None:
        ratio = times(forecast["step_time_ratio"])
        words += f"; steps took {ratio} the planned time"
    first, *rest = wrap(words, WIDTH - MEANING)
    return [
        row("Planned", f"{1 + expected:.2f}", first),
        *(row("", "", line) for line in rest),
    ]


def _off(reasons: Mapping[str, float] | None) -> list[str]:
    """Tell how often the policy chose not to speculate, and why."""
    off = {} if reasons is None else off_share(reasons)
    if not off:
        return []
    whys = [
        why if len(off) == 1 else f"{why} ({percent(share)})"
        for why, share in off.items()
        if why
    ]
    words = f"off in {percent(sum(off.values()))} of the steps"
    if whys:
        words += f": {', '.join(whys[:_MAX_REASONS])}"
    first, *rest = wrap(words, WIDTH - LABEL)
    return [row("Speculation", first, ""), *(row("", line, "") for line in rest)]


def _time(summary: Summary) -> list[str]:
    shares = summary["time_share"]
    latency, baseline = summary["latency_ms"], summary["baseline_latency_ms"]
    return [
        row(
            "Time went to",
            ", ".join(f"{phase} {percent(share)}" for phase, share in shares.items()),
            "",
        ),
        row(
            "Latency",
            milliseconds(latency["p50"]),
            f"half of the requests were done by then, 90% by "
            f"{milliseconds(latency['p90'])}",
        ),
        row(
            "",
            milliseconds(baseline["p50"]),
            f"{without(summary)}, 90% by {milliseconds(baseline['p90'])}",
        ),
        row(
            "First token",
            milliseconds(summary["ttft_ms"]),
            "to read the prompt; not part of the speed-up",
        ),
    ]


def _disturbance(summary: Summary) -> list[str]:
    """Warn where plain steps, which all do the same work, took unequal times."""
    spread = summary["baseline_step_spread"]
    if spread is None or spread < _UNEVEN:
        return []
    return [
        row("Disturbed", f"{spread:.1f}x", "is what one plain step in ten took, or"),
        row("", "", "more, of the usual time: is the machine busy with other work?"),
    ]


def _repeats(repeats: Mapping[str, Any]) -> list[str]:
    """Tell how far measurements of one prompt lie apart, and warn if they are noisy."""
    spread, differing = repeats["speedup_spread"], repeats["num_differing"]
    lines = []
    if spread is not None:
        words = f"between {repeats['num_repeats']} measurements of a prompt's speed-up"
        lines.append(row("Noise", f"{100 * spread:.1f}%", words))
    if spread is not None and spread > _NOISY:
        words = "disturbed: is the machine busy with other work?"
        lines.append(row("", "", words))
    if differing:
        words = f"texts differ between measurements of {differing} prompts"
        lines.append(row("", "", words))
    return lines


def _categories(summary: Summary) -> list[str]:
    names = list(summary["categories"])
    width = min(max(map(len, ["By category", *names]), default=0), 24)
    header = (
        f"{'By category':<{width}}  prompts  speed-up  95% interval    "
        "tokens/forward  drafts kept"
    )
    return [
        header,
        *(
            _category(name[:width], width, summary["categories"][name])
            for name in names
        ),
    ]


def _category(name: str, width: int, group: Summary) -> str:
    interval = group["speedup_ci95"]
    spread = "-" if interval is None else " to ".join(f"{x:.2f}" for x in interval)
    return (
        f"{name:<{width}}  {group['num_prompts']:>7}  {times(group['speedup']):>8}  "
        f"{spread:<14}  {number(group['mean_acceptance_length'], 2):>14}  "
        f"{percent(group['acceptance_rate']):>11}"
    )
