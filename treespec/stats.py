"""Paired statistics over prompts: what the numbers of some prompts say of others.

The unit is the prompt, and what belongs to one prompt (its speculative and its baseline
numbers) stays together. The statistics are scipy's; this says how they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from treespec.errors import TreespecError

Floats = NDArray[np.float64]
_MOST_DRAWN = 2_000_000
"""Resampled prompts that are held in memory at once."""
_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Whether a paired difference is smaller than a margin, and how surely.

    Attributes:
        mean: The mean difference over prompts.
        interval: Its 90% interval; equivalence at 5% is that it lies within the margin.
        margin: The largest difference that would not matter, either way.
        p_value: Chance of what was seen, or of less, if the true difference were as
            large as the margin: the larger one of two one-sided tests.
    """

    mean: float
    interval: Interval
    margin: float
    p_value: float

    @property
    def shown(self) -> bool:
        """Whether equivalence was shown at 5%; if not, nothing was shown."""
        return self.p_value <= _ALPHA


def bootstrap_interval(
    rows: Floats,
    statistic: Callable[[Floats], Floats],
    rng: np.random.Generator,
    num_resamples: int = 9999,
    confidence: float = 0.95,
) -> Interval | None:
    """Return the BCa bootstrap interval of a statistic over prompts.

    The statistic is a function of column sums, which covers ratios of totals, means and
    rates alike. Where the bias correction is undefined (all resamples lie on one side
    of the estimate, or leaving a prompt out changes nothing), the percentile interval
    stands in. Bias-corrected and accelerated: Efron, Better Bootstrap Confidence
    Intervals, 1987.

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

    def of_columns(*columns: Floats, axis: int) -> Floats:
        return statistic(np.stack([c.sum(axis=axis) for c in columns], axis=-1))

    with catch_warnings(), np.errstate(all="ignore"):
        simplefilter("ignore")  # told by the result: BCa that is undefined is NaN
        found = scipy_stats.bootstrap(
            tuple(rows.T),
            of_columns,
            paired=True,
            vectorized=True,
            method="BCa",
            n_resamples=num_resamples,
            confidence_level=confidence,
            batch=max(1, _MOST_DRAWN // num_prompts),
            rng=rng,
        )
    if not np.isfinite(found.bootstrap_distribution).all():
        return None
    low, high = found.confidence_interval
    if not np.isfinite([low, high]).all():
        tails = ((1 - confidence) / 2, (1 + confidence) / 2)
        low, high = np.quantile(found.bootstrap_distribution, tails)
    return Interval(float(low), float(high))


def wilson_interval(
    num_hits: int, num_trials: int, confidence: float = 0.95
) -> Interval | None:
    """Return the Wilson score interval of a rate; ``None`` without trials.

    Written out, since scipy gives it only with a binomial test that takes 2 ms, and a
    summary has hundreds of rates.
    """
    if num_trials == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
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


def geometric_mean_interval(
    values: Sequence[float], rng: np.random.Generator
) -> Interval | None:
    """Return the 95% BCa interval of the geometric mean of positive values.

    ``None`` for fewer than two values.
    """
    rows = np.array([(np.log(value), 1.0) for value in values]).reshape(-1, 2)

    def mean(sums: Floats) -> Floats:
        return np.asarray(np.exp(sums[..., 0] / sums[..., 1]))

    return bootstrap_interval(rows, mean, rng)


def detectable_ratio(ratios: Sequence[float]) -> float | None:
    """Return the least ratio, less 1, that values which scatter so would show.

    With a true geometric mean of 1 plus this, a paired test at 5% finds the difference
    to 1 in four of five experiments. ``None`` for fewer than two values.
    """
    if len(ratios) < 2:
        return None
    spread = float(np.log(ratios).std(ddof=1))
    least = detectable_difference(spread, len(ratios))
    return None if least is None else float(np.expm1(least))


def sign_flip_p_value(
    differences: Sequence[float],
    rng: np.random.Generator,
    num_resamples: int = 9999,
) -> float | None:
    """Return how surprising a mean difference is if either side were as likely ahead.

    A paired permutation test, two-sided: the sign of every prompt's difference is
    flipped at random; exact where the signs can be counted out. Five prompts cannot
    give less than 1/16.

    Args:
        differences: One per prompt, such as differences of logarithms.
        rng: Source of the flips.
        num_resamples: How many are drawn.

    Returns:
        The p-value; ``None`` for fewer than two prompts.
    """
    if len(differences) < 2:
        return None

    def mean(values: Floats, axis: int) -> Floats:
        return np.asarray(values.mean(axis=axis))

    found = scipy_stats.permutation_test(
        (np.asarray(differences, dtype=float),),
        mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=num_resamples,
        rng=rng,
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm, 1979), in the given order.

    The chance that any of those at most 0.05 is a false alarm is at most 0.05, however
    the tests hang together.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def detectable_difference(
    spread: float, num_prompts: int, power: float = 0.8
) -> float | None:
    """Return the least true mean that a paired test would find most of the time.

    Args:
        spread: Standard deviation over prompts of what is tested, such as the
            difference of logarithms; the result has its unit.
        num_prompts: How many prompts.
        power: How often it is found, at 5% two-sided.

    Returns:
        The least mean; ``None`` for fewer than two prompts.
    """
    if num_prompts < 2:
        return None
    law = scipy_stats.t(num_prompts - 1)
    reach = law.ppf(1 - _ALPHA / 2) + law.ppf(power)
    return float(reach * spread / num_prompts**0.5)


def equivalence(
    differences: Sequence[float], margin: float, largest: float
) -> Equivalence | None:
    """Test whether paired differences are within a margin of zero (TOST).

    Two one-sided paired t-tests (Schuirmann, 1987). Where all prompts agree there is no
    spread to go by: then a true mean at the margin would need some prompts to differ,
    each by at most ``largest``, and none of those was met; the exact chance of that
    takes the place of the t-tests. Twenty equal texts show much, yet not everything.
    Where scores are all or nothing, the chance of as few differences is a floor.

    Args:
        differences: One per prompt: its score, less its score on the other side.
        margin: The largest mean difference that would not matter, in the same unit.
        largest: The most by which one prompt's scores can differ, such as 1 for a rate.

    Returns:
        What was found; ``None`` for fewer than two prompts.

    Raises:
        TreespecError: ``margin`` is not positive, or ``largest`` is below it.
    """
    if not 0 < margin <= largest:
        raise TreespecError(
            f"margin must be above 0 and at most {largest:g}, the most by which two "
            f"scores can differ, got {margin!r}"
        )
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return None
    mean = float(values.mean())
    if np.ptp(values) == 0:
        return _equivalence_of_equals(mean, len(values), margin, largest)
    low = scipy_stats.ttest_1samp(values, -margin, alternative="greater")
    high = scipy_stats.ttest_1samp(values, margin, alternative="less")
    both = scipy_stats.ttest_1samp(values, 0.0).confidence_interval(1 - 2 * _ALPHA)
    return Equivalence(
        mean=mean,
        interval=Interval(float(both.low), float(both.high)),
        margin=margin,
        p_value=float(max(low.pvalue, high.pvalue, _least_p(values, margin, largest))),
    )


def _least_p(values: Floats, margin: float, largest: float) -> float:
    """Return the p-value that an all-or-nothing score cannot be below.

    A few right or wrong answers that differ have hardly any spread, of which a t-test
    makes too much: it is no surer than that so few of them were met would be, if the
    share of those that turn were at the margin.
    """
    if not set(np.abs(values)) <= {0.0, largest}:
        return 0.0
    net = abs(round(float(values.sum()) / largest))
    return float(scipy_stats.binom.cdf(net, len(values), margin / largest))


def _equivalence_of_equals(
    mean: float, num_prompts: int, margin: float, largest: float
) -> Equivalence:
    """Return what prompts that all differ by the same show."""
    reach = largest + abs(mean)
    share = max(margin - abs(mean), 0.0) / reach  # of prompts that would be unlike them
    half = reach * (1 - _ALPHA ** (1 / num_prompts))
    return Equivalence(
        mean=mean,
        interval=Interval(max(mean - half, -largest), min(mean + half, largest)),
        margin=margin,
        p_value=float((1 - share) ** num_prompts),
    )
