"""Intervals and tests say what scipy says, and hold where scipy says nothing."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats as scipy_stats

from treespec.errors import TreespecError
from treespec.stats import (
    Interval,
    bootstrap_interval,
    detectable_difference,
    equivalence,
    geometric_mean,
    holm,
    sign_flip_p_value,
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
def test_bca_interval_of_a_ratio_of_sums_is_efrons(num_prompts):
    """Written out from the paper, over the resamples that the generator gives."""
    rows = _seconds(num_prompts)
    found = bootstrap_interval(rows, _ratio, np.random.default_rng(3), 2000)
    drawn = np.random.default_rng(3).integers(0, num_prompts, (2000, num_prompts))
    resampled = _ratio(rows[drawn].sum(axis=1))
    estimate, without_one = _ratio(rows.sum(axis=0)), _ratio(rows.sum(axis=0) - rows)
    below = ((resampled < estimate).mean() + (resampled <= estimate).mean()) / 2
    influence = without_one.mean() - without_one
    acceleration = (influence**3).sum() / (6 * (influence**2).sum() ** 1.5)
    bias, normal = scipy_stats.norm.ppf(below), scipy_stats.norm
    shifted = bias + normal.ppf([0.025, 0.975])
    tails = normal.cdf(bias + shifted / (1 - acceleration * shifted))
    expected = np.quantile(resampled, tails)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-9)


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


def test_signs_of_few_prompts_are_counted_out():
    """By hand: of 2**4 sign patterns, as many are as extreme as what was seen."""
    values = [0.3, 0.1, -0.05, 0.2]
    means = [np.dot(signs, values) for signs in product((1, -1), repeat=4)]
    extreme = sum(mean >= sum(values) - 1e-12 for mean in means) / 16
    found = sign_flip_p_value(values, np.random.default_rng(0))
    assert found == pytest.approx(2 * extreme)
    # Five prompts that all say the same are the least that can be said with five.
    assert sign_flip_p_value([1.0] * 5, np.random.default_rng(0)) == 1 / 16
    assert sign_flip_p_value([1.0], np.random.default_rng(0)) is None


def test_sign_flips_rarely_see_a_difference_where_there_is_none():
    # 200 experiments at 5%: more than 22 alarms has a probability below 1e-3.
    rng = np.random.default_rng(1)
    alarms = [
        sign_flip_p_value(rng.standard_t(3, 12), rng, num_resamples=999) <= 0.05
        for _ in range(200)
    ]
    assert sum(alarms) <= 22


def test_holm_is_the_table_of_a_textbook():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_many_equal_runs_seldom_have_a_winner():
    """Without adjusting, ten pairs give a false alarm in two sweeps of five.

    50 sweeps at 5%: more than 9 with an alarm has a probability below 1e-3.
    """
    rng = np.random.default_rng(7)
    alarms = unadjusted = 0
    for _ in range(50):
        pairs = [sign_flip_p_value(rng.normal(size=10), rng) for _ in range(10)]
        unadjusted += min(pairs) <= 0.05
        alarms += min(holm(pairs)) <= 0.05
    assert alarms <= 9 < unadjusted


def test_a_detectable_difference_is_detected_four_times_out_of_five():
    # 2000 experiments: outside of 0.74 to 0.86 has a probability below 1e-9.
    num_prompts, spread, rng = 12, 0.3, np.random.default_rng(2)
    least = detectable_difference(spread, num_prompts)
    values = rng.normal(least, spread, (2000, num_prompts))
    p_values = scipy_stats.ttest_1samp(values, 0.0, axis=1).pvalue
    assert 0.74 < (p_values <= 0.05).mean() < 0.86
    assert detectable_difference(spread, 1) is None


def test_equivalence_is_two_one_sided_tests():
    values = np.random.default_rng(3).normal(0.01, 0.1, 40)
    found = equivalence(values, margin=0.05, largest=1.0)
    error = values.std(ddof=1) / math.sqrt(40)
    half = scipy_stats.t.ppf(0.95, 39) * error
    p_value = 1 - scipy_stats.t.cdf((0.05 - abs(values.mean())) / error, 39)
    assert found.p_value == pytest.approx(p_value)
    assert found.interval.low == pytest.approx(values.mean() - half)
    assert found.interval.high == pytest.approx(values.mean() + half)
    inside = found.interval.low > -0.05 and found.interval.high < 0.05
    assert found.shown == inside


def test_a_difference_at_the_margin_is_called_equivalent_one_time_in_twenty():
    # 400 experiments at 5%: more than 40 has a probability below 1e-4.
    rng = np.random.default_rng(4)
    found = [
        equivalence(rng.normal(0.05, 0.08, 25), margin=0.05, largest=1.0).shown
        for _ in range(400)
    ]
    assert 5 <= sum(found) <= 40


@pytest.mark.parametrize(("num_prompts", "shown"), [(20, False), (60, True)])
def test_equal_scores_of_few_prompts_do_not_show_equivalence(num_prompts, shown):
    """Without spread a t-test is certain, even of two prompts that agree.

    If one prompt in twenty differed, by 1, twenty would all agree with 0.95**20 = 36%.
    """
    found = equivalence([0.0] * num_prompts, margin=0.05, largest=1.0)
    assert found.p_value == pytest.approx(0.95**num_prompts)
    assert found.shown == shown
    assert (found.interval.high < found.margin) == shown


@pytest.mark.parametrize("num_gains", [0, 3])
def test_a_loss_of_right_answers_at_the_margin_is_seldom_called_equal(num_gains):
    """Of 100 answers with a loss of 5%, a t-test alone called 12% equivalent."""
    rng = np.random.default_rng(7)
    share = num_gains / 100
    shown = 0
    for _ in range(400):
        drawn = rng.random(100)
        losses = drawn < 0.05 + share
        gains = drawn > 1 - share
        scores = gains.astype(float) - losses
        shown += equivalence(scores, margin=0.05, largest=1.0).shown
    assert shown <= 40  # at 5%, more has a probability below 1e-4


def test_an_answer_that_turned_wrong_makes_nobody_surer():
    """57 equal answers and a lost one were equivalent, 58 equal ones were not."""
    surely = equivalence([0.0] * 58, margin=0.05, largest=1.0)
    less = equivalence([0.0] * 57 + [-1.0], margin=0.05, largest=1.0)
    assert less.p_value > surely.p_value
    assert not less.shown


def test_equal_differences_beyond_the_margin_are_no_equivalence():
    assert not equivalence([0.2] * 500, margin=0.1, largest=1.0).shown
    assert equivalence([0.0], margin=0.1, largest=1.0) is None


@pytest.mark.parametrize("margin", [0, -1, 2, math.nan])
def test_an_impossible_margin_is_refused(margin):
    with pytest.raises(TreespecError, match=r"margin must be above 0 and at most 1"):
        equivalence([0.0, 0.1], margin=margin, largest=1.0)
