"""Numbers in words, the same way in every study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treespec.sinks.lines import times


def with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """Return a ratio and its 95% interval, if it has one."""
    if value is None or interval is None:
        return times(value)
    return f"{times(value)} ({interval[0]:.2f} to {interval[1]:.2f})"


def speedup(summary: Mapping[str, Any]) -> str:
    """Return the speed-up of a summary and its 95% interval."""
    return with_interval(summary["speedup"], summary["speedup_ci95"])


def pays(summary: Mapping[str, Any]) -> str:
    """Return what a summary's interval says of its speed-up, in a few words."""
    interval = summary["speedup_ci95"]
    if interval is None:
        return "too few prompts to tell"
    if interval[0] > 1:
        return "faster"
    return "slower" if interval[1] < 1 else "not told apart"


def listed(words: Sequence[str], none: str = "none") -> str:
    """Return ``a, b and c``."""
    if not words:
        return none
    head, last = ", ".join(words[:-1]), words[-1]
    return f"{head} and {last}" if head else last
