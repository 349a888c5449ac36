"""What a summary says of the texts: are they lossless, how good, where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from treespec.metrics import PLAIN, Summary
from treespec.outcome import FAR
from treespec.sinks.lines import LABEL, MEANING, WIDTH, number, row

_MAX_DIVERGENCES = 6
_MAX_NAME = 16


def verdict_lines(lossless: Summary, baseline: str) -> list[str]:
    """Say whether the texts are the target's own, as far as they were compared."""
    plain = "plain decoding" if baseline == PLAIN else baseline
    words = _verdict_words(lossless, plain, is_own=baseline == PLAIN)
    first, *rest = wrap(words, WIDTH - LABEL)
    return [row("Lossless", first, ""), *(row("", line, "") for line in rest)]


def quality_lines(summary: Summary) -> list[str]:
    """Tell what the target thinks of the texts of a lossy rule."""
    if summary["lossless"]["rule_is_lossless"]:
        return []
    plain = number(summary["baseline_mean_token_logprob"], 3)
    return [
        row(
            "Quality",
            number(summary["mean_token_logprob"], 3),
            "mean log-probability of a new token under the target;",
        ),
        row("", "", f"{plain} {without(summary)}"),
    ]


def measure_line(name: str, found: Mapping[str, Any]) -> str:
    """Compare both sides by one quality measure."""
    digits = 1 if found["margin"] >= 1 else 3
    plain, gap = (number(found[key], digits) for key in ("baseline", "difference"))
    words = f"{plain} without speculation, on {found['num_prompts']} prompts; "
    words += f"difference {gap}{_equality(found, digits)}"
    if found["num_cut"]:
        words += f"; {found['num_cut']} texts were cut by a length limit"
    first, *rest = wrap(words, WIDTH - MEANING)
    value = number(found["speculative"], digits)
    lines = [row(f"  {name}", value, first), *(row("", "", line) for line in rest)]
    return "\n".join(lines)


def _equality(found: Mapping[str, Any], digits: int) -> str:
    """Tell whether both sides were shown to be equal within the margin."""
    interval, margin = found["difference_ci90"], f"{found['margin']:g}"
    if interval is None:
        return ": too few prompts to say more"
    low, high = (number(end, digits) for end in interval)
    verdict = {
        True: f"shown to be equal within {margin}",
        False: f"not shown to be equal within {margin}",
        None: f"no verdict, as texts with nothing right would be within {margin} too",
    }
    return f" (90% interval {low} to {high}): {verdict[found['equivalent']]}"


def _verdict_words(lossless: Summary, plain: str, *, is_own: bool) -> str:
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
        why = (
            "where two of the target's choices are equal within numerical noise"
            if is_own
            else "with tokens that are the target's own choice within numerical noise"
        )
        return (
            f"yes. {identical} of {checked} texts are token for token those of "
            f"{plain}; the rest ({lossless['ties']}) part from it {why}."
        )
    if checked == 1:
        return f"yes. The text is token for token that of {plain}."
    return f"yes. All {checked} texts are token for token those of {plain}."


def divergences_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say of each divergence how close the call was; violations come first."""
    ordered = sorted(found, key=lambda row: row["lossless"] != "violation")
    lines = [_divergence(row) for row in ordered[:_MAX_DIVERGENCES]]
    more = len(found) - len(lines)
    if lines:
        lines.insert(0, "margin and noise of the target's logits where they part:")
    if more:
        lines.append(f"and {more} more in prompts.jsonl")
    return [row("", line, "") for line in lines]


def _divergence(row: Mapping[str, Any]) -> str:
    far = "never" if row["margin"] >= FAR else f"{row['margin']:.2g}"
    place = f"{row['id'][:_MAX_NAME]}, token {row['index']}"
    return f"{row['lossless']}: {place}: margin {far}, noise {row['noise']:.2g}"


def without(summary: Summary) -> str:
    """Return how the baseline of a summary is told."""
    name = summary["baseline"]
    return "without speculation" if name == PLAIN else f"by {name}"
