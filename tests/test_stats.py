"""Intervals agree with scipy, and fall back only where they must."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from treespec.stats import (
    Interval,
    bootstrap_interval,
    geometric_mean,
    wilson_interval,
)


def _ratio(sums):
    return sums[..., 0] / sums[..., 1]


def _seconds(num_prompts, seed=0):
    rng = np.random.default_rng(seed)
    speculative = rng.lognormal(0.0, 0.6, num_prompts)
    baseline = speculative * rng.lognormal(0.4, 0.3, num_prompts)
    return np.stack((baseline, speculative), axis=1)


@pytest.mark.parametrize("num_prompts", [2, 5, 24])
def test_bca_interval_equals_scipys_paired_bca_on_the_same_draws(num_prompts):
    rows = _seconds(num_prompts)
    ours = bootstrap_interval(rows, _ratio, np.random.default_rng(3), 2000)
    theirs = scipy_stats.bootstrap(
        (rows[:, 0], rows[:, 1]),
        lambda baseline, speculative, axis: (
            baseline.sum(axis=axis) / speculative.sum(axis=axis)
        ),
        paired=True,
        method="BCa",
        n_resamples=2000,
        rng=np.random.default_rng(3),
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9)


def test_interval_keeps_a_prompts_two_numbers_together():
    # Every prompt has the same ratio, so only broken pairs could show any spread.
    baseline = np.array([1.0, 5.0, 30.0, 2.0])
    rows = np.stack((baseline, baseline / 2), axis=1)
    interval = bootstrap_interval(rows, _ratio, np.random.default_rng(0))
    assert (interval.low, interval.high) == pytest.approx((2.0, 2.0))


def test_percentile_interval_stands_in_where_bca_is_undefined():
    """A mean that no resample exceeds has an infinite bias correction."""
    rows = np.array([[1.0], [1.0], [1.0]])
    interval = bootstrap_interval(
        rows, lambda sums: sums[..., 0] / 3, np.random.default_rng(0)
    )
    assert interval == Interval(1.0, 1.0)


def test_one_prompt_has_no_interval():
    assert bootstrap_interval(_seconds(1), _ratio, np.random.default_rng(0)) is None


def test_resamples_without_a_finite_value_give_no_interval():
    rows = np.array([[1.0, 0.0], [2.0, 1.0]])
    with np.errstate(divide="ignore"):
        interval = bootstrap_interval(rows, _ratio, np.random.default_rng(0))
    assert interval is None


def test_the_same_generator_seed_gives_the_same_interval():
    rows = _seconds(8)
    first, second, other = (
        bootstrap_interval(rows, _ratio, np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert first == second != other


def test_bca_interval_covers_the_truth_about_as_often_as_it_says():
    # 200 experiments at 95%: fewer than 170 hits has a probability below 1e-8.
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        speculative = rng.uniform(0.5, 1.5, 30)
        baseline = 1.5 * speculative + rng.normal(0.0, 0.2, 30)
        rows = np.stack((baseline, speculative), axis=1)
        interval = bootstrap_interval(rows, _ratio, rng, num_resamples=500)
        hits += interval.low <= 1.5 <= interval.high
    assert 170 <= hits <= 200


@pytest.mark.parametrize(("hits", "trials"), [(0, 5), (3, 7), (40, 40), (123, 456)])
def test_wilson_interval_equals_scipys(hits, trials):
    ours = wilson_interval(hits, trials)
    theirs = scipy_stats.binomtest(hits, trials).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_a_rate_without_trials_has_no_interval():
    assert wilson_interval(0, 0) is None


def test_geometric_mean_of_a_doubling_and_a_halving_is_one():
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geometric_mean([]) is None
