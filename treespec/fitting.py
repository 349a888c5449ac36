"""From timings to a cost curve: medians, isotonic regression, slopes of the text.

Timings are never trusted one by one. Those that cannot be (NaN, infinite, zero or
negative) are dropped, and of the others only the median of each size counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from treespec.costs import CostCurve
from treespec.errors import TreespecError

LEAST_SIZES = 2
"""Fewer numbers of rows than these make no curve."""


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """What was timed: a forward of so many rows behind a text of such a length.

    Attributes:
        num_rows: Rows of the forward.
        length: Committed tokens before them.
    """

    num_rows: int
    length: int


Timings = Mapping[Size, Sequence[float]]
"""Seconds of each size, as often as it was timed."""


def valid_seconds(seconds: Iterable[float]) -> list[float]:
    """Return those that can be the seconds of anything: finite and above 0."""
    return [value for value in seconds if 0 < value < math.inf]


def medians(timings: Timings) -> dict[Size, float]:
    """Return the lower median of each size that has a valid timing.

    The lower one, because noise only ever makes a forward slower: of two timings the
    smaller one is closer to the truth.
    """
    valid = {size: valid_seconds(seconds) for size, seconds in timings.items()}
    return {size: median_low(found) for size, found in valid.items() if found}


def fit_curve(timings: Timings, what: str) -> CostCurve:
    """Return the curve that timings are best described by.

    The text length with the most numbers of rows is the reference: an isotonic
    regression of its medians gives the knots. What the medians of longer texts exceed
    that by gives seconds per token of text: for each number of rows by least squares,
    then made to fall nowhere.

    Args:
        timings: Seconds of each size.
        what: What was timed, for messages.

    Raises:
        TreespecError: Fewer than two numbers of rows have a valid timing.
    """
    found = medians(timings)
    length = _reference(found)
    known = sorted(size for size in found if size.length == length)
    if len(known) < LEAST_SIZES:
        num_all = sum(map(len, timings.values()))
        num_valid = sum(len(valid_seconds(seconds)) for seconds in timings.values())
        raise TreespecError(
            f"{what}: of {num_all} timings {num_valid} are finite and > 0, of too few "
            f"numbers of rows for a cost curve ({len(known)}, at least {LEAST_SIZES} "
            "are needed); is the clock of this machine sound? measure again with "
            "treespec profile force=true"
        )
    rows = tuple(size.num_rows for size in known)
    level = CostCurve(rows, isotonic([found[size] for size in known]), length)
    token_s = _token_s(level, found)
    curve = replace(
        level,
        token_rows=tuple(token_s) or (1,),
        token_s=isotonic(tuple(token_s.values()) or (0.0,)),
    )
    return replace(curve, error=_error(curve, found))


def isotonic(values: Sequence[float]) -> tuple[float, ...]:
    """Return the sequence that never falls and is closest in squares (pool adjacent).

    Args:
        values: Any numbers.  # [K]
    """
    pools: list[tuple[float, int]] = []  # mean, count
    for value in values:
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            below, num_below = pools.pop()
            mean = (below * num_below + mean * count) / (num_below + count)
            count += num_below
        pools.append((mean, count))
    return tuple(mean for mean, count in pools for _ in range(count))


def _reference(found: Mapping[Size, float]) -> int:
    """Return the length with the most numbers of rows, the shortest of several."""
    lengths = sorted({size.length for size in found})
    counts = {n: sum(size.length == n for size in found) for n in lengths}
    return max(lengths, key=lambda length: counts[length], default=0)


def _token_s(level: CostCurve, found: Mapping[Size, float]) -> dict[int, float]:
    """Return seconds per further token of text, by number of rows: a line each.

    Every line begins on the curve of the reference length and never falls.
    """
    longer = sorted(size for size in found if size.length > level.length)
    lines: dict[int, float] = {}
    for num_rows in sorted({size.num_rows for size in longer}):
        points = [
            (size.length - level.length, found[size] - level.at(num_rows))
            for size in longer
            if size.num_rows == num_rows
        ]
        squares = sum(further * further for further, _ in points)
        products = sum(further * excess for further, excess in points)
        lines[num_rows] = max(0.0, products / squares)
    return lines


def _error(curve: CostCurve, found: Mapping[Size, float]) -> float:
    """Return the root mean square of the relative deviations of the medians."""
    shares = [
        curve.at(size.num_rows, size.length) / seconds - 1
        for size, seconds in found.items()
    ]
    return math.sqrt(sum(share * share for share in shares) / len(shares))
