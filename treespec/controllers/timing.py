"""Measured seconds, as far as they can be believed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median_low

WINDOW = 9
"""Newest measurements that are kept; an odd number has a middle."""
LEAST_S = 1e-9
"""No step is faster; a clock that says so stood still."""


def with_seconds(window: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """Return the newest measurements with one more, unless it is none.

    A clock that stood still or went backwards, and NaN, tell nothing.
    """
    if not LEAST_S <= seconds < math.inf:
        return window
    return (*window, seconds)[-WINDOW:]


def typical_seconds(window: Sequence[float]) -> float | None:
    """Return the median, which no single outlier moves; ``None`` if nothing is known.

    Of two values it is the smaller: what disturbs a measurement makes it longer.
    """
    return median_low(window) if window else None
