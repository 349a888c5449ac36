"""Paired statistics over prompts: intervals and means, with numpy only.

The unit of resampling is the prompt, and what belongs to one prompt (its speculative
and its baseline numbers) stays together. All statistics here are functions of column
sums, which covers ratios of totals, means and rates alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


def bootstrap_interval(
    rows: Floats,
    statistic: Callable[[Floats], Floats],
    rng: np.random.Generator,
    num_resamples: int = 9999,
    confidence: float = 0.95,
) -> Interval | None:
    """Return the BCa bootstrap interval of a statistic over prompts.

    Where the bias correction is undefined (all resamples lie on one side of the
    estimate, or leaving a prompt out changes nothing), the percentile interval stands
    in. Bias-corrected and accelerated: Efron, Better Bootstrap Confidence Intervals,
    1987.

    Args:
        rows: One row of numbers per prompt.  # [P, C]
        statistic: Maps column sums ``[..., C]`` to values ``[...]``.
        rng: Source of the resamples.
        num_resamples: How many resamples are drawn.
        confidence: Coverage of the interval.

    Returns:
        The interval; ``None`` for fewer than two prompts, or if a resample has no
        finite value.
    """
    num_prompts = rows.shape[0]
    if num_prompts < 2:
        return None
    drawn = rng.integers(0, num_prompts, (num_resamples, num_prompts))
    sums = np.stack([column[drawn].sum(axis=1) for column in rows.T], axis=-1)
    resampled = statistic(sums)
    if not np.isfinite(resampled).all():
        return None
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    corrected = _bca_tails(tails, rows, statistic, resampled)
    low, high = np.quantile(resampled, tails if corrected is None else corrected)
    return Interval(float(low), float(high))


def _bca_tails(
    tails: Floats,
    rows: Floats,
    statistic: Callable[[Floats], Floats],
    resampled: Floats,
) -> Floats | None:
    """Return the tail probabilities, bias-corrected and accelerated."""
    total = rows.sum(axis=0)
    estimate = statistic(total)
    below = ((resampled < estimate).mean() + (resampled <= estimate).mean()) / 2
    without_one = statistic(total - rows)
    influence = without_one.mean() - without_one
    spread = float((influence**2).sum())
    if not 0 < below < 1 or not np.isfinite(spread) or spread == 0:
        return None
    bias = _NORMAL.inv_cdf(float(below))
    acceleration = float((influence**3).sum()) / (6 * spread**1.5)
    shifted = [bias + _NORMAL.inv_cdf(float(tail)) for tail in tails]
    if any(acceleration * shift >= 1 for shift in shifted):
        return None
    return np.array(
        [_NORMAL.cdf(bias + shift / (1 - acceleration * shift)) for shift in shifted]
    )


def wilson_interval(
    num_hits: int, num_trials: int, confidence: float = 0.95
) -> Interval | None:
    """Return the Wilson score interval of a rate; ``None`` without trials."""
    if num_trials == 0:
        return None
    z = _NORMAL.inv_cdf((1 + confidence) / 2)
    rate = num_hits / num_trials
    scale = 1 + z**2 / num_trials
    centre = (rate + z**2 / (2 * num_trials)) / scale
    variance = rate * (1 - rate) / num_trials + z**2 / (4 * num_trials**2)
    half = z * variance**0.5 / scale
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean of positive values; ``None`` if there are none."""
    if not values:
        return None
    return float(np.exp(np.log(values).mean()))
