"""Runs of a sweep are told apart only where that is no luck."""

import numpy as np
import pytest

from treespec.comparisons import compare_all
from treespec.stats import holm

PROMPTS = [f"p{number}" for number in range(20)]


def speedups(seed, factor=1.0, noise=0.03):
    """Speed-ups that follow the prompts, as those of all strategies do."""
    texts = np.random.default_rng(0).lognormal(0.4, 0.4, len(PROMPTS))
    own = np.random.default_rng(seed).lognormal(0.0, noise, len(PROMPTS))
    return dict(zip(PROMPTS, factor * texts * own, strict=True))


def test_a_small_difference_shows_among_prompts_that_differ_much():
    """Unpaired, 5% would drown in prompts that lie 40% apart."""
    (pair,) = compare_all({"a": speedups(1, 1.05), "b": speedups(2)})
    assert pair.num_prompts == 20
    assert pair.ratio == pytest.approx(1.05, abs=0.03)
    assert pair.p_value < 0.01
    assert pair.interval.low < pair.ratio < pair.interval.high
    assert pair.detectable < 0.05


def test_p_values_are_adjusted_for_all_pairs():
    runs = {f"run{seed}": speedups(seed) for seed in range(1, 5)}
    pairs = compare_all(runs)
    assert len(pairs) == 6
    adjusted = [pair.adjusted_p_value for pair in pairs]
    assert adjusted == holm([pair.p_value for pair in pairs])


def test_many_runs_do_not_hide_a_difference_that_is_large():
    """From 23 runs on, no pair could differ: the least p-value was 2 in 10,000."""
    runs = {f"run{seed}": speedups(seed) for seed in range(1, 24)}
    pairs = compare_all({**runs, "fast": speedups(99, 3.0)})
    fast = [pair.adjusted_p_value for pair in pairs if pair.other == "fast"]
    assert len(fast) == 23
    assert max(fast) < 0.05


def test_few_prompts_give_no_interval():
    few = [{name: runs[name] for name in PROMPTS[:4]} for runs in map(speedups, (1, 2))]
    (pair,) = compare_all(dict(enumerate(few)))
    assert (pair.num_prompts, pair.interval) == (4, None)


def test_runs_that_share_no_prompt_are_not_compared():
    (pair,) = compare_all({"a": {"x": 1.2}, "b": {"y": 1.3}})
    assert (pair.num_prompts, pair.ratio, pair.p_value) == (0, None, None)
    assert pair.adjusted_p_value is pair.detectable is None
