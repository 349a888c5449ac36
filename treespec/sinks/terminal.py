"""The final table: every line says in a few words what its number means."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, TextIO

from treespec.forecasts import off_share
from treespec.metrics import MIN_PROMPTS_FOR_INTERVAL, PLAIN, Summary
from treespec.outcome import FAR, PromptOutcome
from treespec.sinks.base import AbstractSink, RunInfo, RunStatus

_WIDTH = 88
_LABEL = 16
_MEANING = 26
_MAX_REASONS = 3
_MAX_DEPTHS = 8
_UNEVEN = 1.5
_MAX_DIVERGENCES = 6
_MAX_NAME = 16


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
        print(_line("Files", str(self._folder), ""), file=stream, flush=True)


def render(summary: Summary) -> str:
    """Return the table of a summary: plain text, at most 88 columns wide."""
    return "\n".join(
        [
            *_speed(summary),
            *_acceptance(summary),
            *_optimum(summary),
            *_forecast(summary["forecast"]),
            *_off(summary["reason_share"]),
            *_time(summary),
            *_disturbance(summary),
            "",
            *_categories(summary),
            "",
            *_verdict(summary["lossless"], summary["baseline"]),
            *_quality(summary),
            *(_measure(name, found) for name, found in summary["quality"].items()),
            *_divergences(summary["divergences"]),
        ]
    )


def _speed(summary: Summary) -> list[str]:
    interval = summary["speedup_ci95"]
    spread = (
        f"no interval from fewer than {MIN_PROMPTS_FOR_INTERVAL} prompts"
        if interval is None
        else f"95% confidence interval {_times(interval[0])} to {_times(interval[1])}"
    )
    return [
        _line("Speed-up", _times(summary["speedup"]), spread),
        _line(
            "Tokens/second",
            _number(summary["tokens_per_second"], 1),
            f"{_number(summary['baseline_tokens_per_second'], 1)} "
            f"{_without(summary)}, on the same prompts",
        ),
        _line(
            "Tokens/forward",
            _number(summary["mean_acceptance_length"], 2),
            "new tokens per target forward (1.00 without speculation)",
        ),
    ]


def _without(summary: Summary) -> str:
    """Return how the baseline is told."""
    name = summary["baseline"]
    return "without speculation" if name == PLAIN else f"by {name}"


def _acceptance(summary: Summary) -> list[str]:
    rates = summary["acceptance_rate_by_depth"][:_MAX_DEPTHS]
    deeper = len(summary["acceptance_rate_by_depth"]) - len(rates)
    lines = [
        _line(
            "Drafts kept",
            _percent(summary["acceptance_rate"]),
            f"of all drafts that were checked; {_number(summary['mean_nodes'], 1)} "
            "per step",
        )
    ]
    if rates:
        steps = "of all steps kept at least 1, 2, ... drafted tokens"
        more = f" (and {deeper} deeper)" if deeper else ""
        lines.append(_line("  by depth", " ".join(map(_percent, rates)) + more, ""))
        lines.append(_line("", "", steps))
    return lines


def _optimum(summary: Summary) -> list[str]:
    """Tell how far the rule is from the best one, if nodes were traced."""
    optimum = summary["optimal_node_acceptance"]
    if optimum is None:
        return []
    realised = _percent(summary["node_acceptance"])
    return [
        _line("  by node", realised, "of the nodes that were compared kept a child;"),
        _line(
            "", "", f"{_percent(optimum)} is the most that a lossless rule could expect"
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
        ratio = _times(forecast["step_time_ratio"])
        words += f"; steps took {ratio} the planned time"
    first, *rest = wrap(words, _WIDTH - _MEANING)
    return [
        _line("Planned", f"{1 + expected:.2f}", first),
        *(_line("", "", line) for line in rest),
    ]


def _off(reasons: Mapping[str, float] | None) -> list[str]:
    """Tell how often the policy chose not to speculate, and why."""
    off = {} if reasons is None else off_share(reasons)
    if not off:
        return []
    whys = [
        why if len(off) == 1 else f"{why} ({_percent(share)})"
        for why, share in off.items()
        if why
    ]
    words = f"off in {_percent(sum(off.values()))} of the steps"
    if whys:
        words += f": {', '.join(whys[:_MAX_REASONS])}"
    first, *rest = wrap(words, _WIDTH - _LABEL)
    return [_line("Speculation", first, ""), *(_line("", line, "") for line in rest)]


def _time(summary: Summary) -> list[str]:
    shares = summary["time_share"]
    latency, baseline = summary["latency_ms"], summary["baseline_latency_ms"]
    return [
        _line(
            "Time went to",
            ", ".join(f"{phase} {_percent(share)}" for phase, share in shares.items()),
            "",
        ),
        _line(
            "Latency",
            _milliseconds(latency["p50"]),
            f"half of the requests were done by then, 90% by "
            f"{_milliseconds(latency['p90'])}",
        ),
        _line(
            "",
            _milliseconds(baseline["p50"]),
            f"{_without(summary)}, 90% by {_milliseconds(baseline['p90'])}",
        ),
        _line(
            "First token",
            _milliseconds(summary["ttft_ms"]),
            "to read the prompt; not part of the speed-up",
        ),
    ]


def _disturbance(summary: Summary) -> list[str]:
    """Warn where plain steps, which all do the same work, took unequal times."""
    spread = summary["baseline_step_spread"]
    if spread is None or spread < _UNEVEN:
        return []
    return [
        _line("Disturbed", f"{spread:.1f}x", "is what one plain step in ten took, or"),
        _line("", "", "more, of the usual time: is the machine busy with other work?"),
    ]


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
        f"{name:<{width}}  {group['num_prompts']:>7}  {_times(group['speedup']):>8}  "
        f"{spread:<14}  {_number(group['mean_acceptance_length'], 2):>14}  "
        f"{_percent(group['acceptance_rate']):>11}"
    )


def _verdict(lossless: Summary, baseline: str) -> list[str]:
    plain = "plain decoding" if baseline == PLAIN else baseline
    first, *rest = wrap(_verdict_words(lossless, plain), _WIDTH - _LABEL)
    return [_line("Lossless", first, ""), *(_line("", line, "") for line in rest)]


def _quality(summary: Summary) -> list[str]:
    """Tell what the target thinks of the texts of a lossy rule."""
    if summary["lossless"]["rule_is_lossless"]:
        return []
    plain = _number(summary["baseline_mean_token_logprob"], 3)
    return [
        _line(
            "Quality",
            _number(summary["mean_token_logprob"], 3),
            "mean log-probability of a new token under the target;",
        ),
        _line("", "", f"{plain} {_without(summary)}"),
    ]


def _measure(name: str, found: Mapping[str, Any]) -> str:
    """Compare both sides by one quality measure."""
    digits = 1 if found["margin"] >= 1 else 3
    plain, gap = (_number(found[key], digits) for key in ("baseline", "difference"))
    words = f"{plain} without speculation, on {found['num_prompts']} prompts; "
    interval = found["difference_ci95"]
    if interval is None:
        words += f"difference {gap}: too few prompts to say more"
    else:
        low, high = (_number(end, digits) for end in interval)
        shown = "shown" if found["equivalent"] else "not shown"
        words += (
            f"difference {gap} (95% interval {low} to {high}): {shown} to be equal "
            f"within {found['margin']:g}"
        )
    if found["num_cut"]:
        words += f"; {found['num_cut']} texts were cut by a length limit"
    first, *rest = wrap(words, _WIDTH - _MEANING)
    value = _number(found["speculative"], digits)
    lines = [_line(f"  {name}", value, first), *(_line("", "", line) for line in rest)]
    return "\n".join(lines)


def _verdict_words(lossless: Summary, plain: str) -> str:
    checked, identical = lossless["checked"], lossless["identical"]
    if not lossless["rule_is_lossless"]:
        return (
            "no, by design: the acceptance rule is lossy, so its speed-up does not "
            "compare with that of a lossless one."
        )
    if not checked:
        return "not compared: with sampling the texts need not be equal."
    if lossless["violations"]:
        return (
            f"NO. {lossless['violations']} of {checked} texts differ from those of "
            f"{plain} by more than numerical noise."
        )
    if lossless["ties"]:
        return (
            f"yes. {identical} of {checked} texts are token for token those of "
            f"{plain}; the rest ({lossless['ties']}) part from it where two of the "
            "target's choices are equal within numerical noise."
        )
    if checked == 1:
        return f"yes. The text is token for token that of {plain}."
    return f"yes. All {checked} texts are token for token those of {plain}."


def _divergences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say of each divergence how close the call was; violations come first."""
    ordered = sorted(found, key=lambda row: row["lossless"] != "violation")
    lines = [_divergence(row) for row in ordered[:_MAX_DIVERGENCES]]
    more = len(found) - len(lines)
    if lines:
        lines.insert(0, "margin and noise of the target's logits where they part:")
    if more:
        lines.append(f"and {more} more in prompts.jsonl")
    return [_line("", line, "") for line in lines]


def _divergence(row: Mapping[str, Any]) -> str:
    far = "never" if row["margin"] >= FAR else f"{row['margin']:.2g}"
    place = f"{row['id'][:_MAX_NAME]}, token {row['index']}"
    return f"{row['lossless']}: {place}: margin {far}, noise {row['noise']:.2g}"


def _line(label: str, value: str, meaning: str) -> str:
    text = f"{label:<{_LABEL}}{value}"
    return f"{text:<{_MEANING}}{meaning}".rstrip() if meaning else text.rstrip()


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"
