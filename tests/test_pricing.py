"""Seconds by the profile, against sums by hand and against every split of a text."""

from itertools import pairwise

import pytest

from tests.outcomes import make_result, make_step
from treespec.costs import CostCurve, Costs
from treespec.pricing import chain_draft_s, free_draft_s, planned_s, priced_s

COSTS = Costs.through(
    target_s={1: 10.0, 2: 11.0, 4: 16.0, 8: 40.0}, draft_s={1: 1.0, 2: 1.5}, step_s=0.5
)
GROWING = Costs(
    CostCurve((1, 4, 8), (10.0, 12.0, 30.0), 0, (1, 8), (0.31, 0.38)),
    CostCurve((1, 8), (1.0, 1.7), 0, (1, 8), (0.021, 0.028)),
    step_s=0.25,
)


def splits(num_tokens):
    """Return every way to split a text into steps, as ends of steps."""
    if num_tokens == 0:
        return [(0,)]
    inner = range(1, num_tokens)
    return [
        (0, *(place for place in inner if choice >> (place - 1) & 1), num_tokens)
        for choice in range(2 ** len(inner))
    ]


def every_free_sum(costs, num_prompt_tokens, num_tokens):
    return [
        sum(
            costs.target(end - start, num_prompt_tokens + 1 + start) + costs.step_s
            for start, end in pairwise(ends)
        )
        for ends in splits(num_tokens - 1)
    ]


def chain_sum(costs, first, ends):
    """Return the seconds of one split, forward by forward, as the draft model runs."""
    total, opened = 0.0, False
    for start, end in pairwise(ends):
        length, num_drafts = first + start, end - start - 1
        total += costs.target(1 + num_drafts, length) + costs.step_s
        for forward in range(num_drafts):
            if forward:
                total += costs.draft(1, length + forward)
            elif opened:
                total += costs.draft(2, length - 2)
            else:
                total += costs.draft(length, 0)
        opened |= num_drafts > 0
    return total


def test_a_known_text_is_split_into_the_forwards_that_pay():
    """Six tokens after the first: 1 + 1 + ... costs 63, 2 + 2 + 2 costs 34.5.

    4 + 2 costs 28, and 6 at once, half-way between 4 and 8 rows, costs 28.5.
    """
    assert free_draft_s(COSTS, 10, num_tokens=7) == pytest.approx(16 + 11 + 2 * 0.5)


@pytest.mark.parametrize("costs", [COSTS, GROWING])
@pytest.mark.parametrize("num_tokens", range(1, 11))
def test_the_free_bound_is_the_least_over_all_splits(costs, num_tokens):
    brute = min(every_free_sum(costs, 5, num_tokens))
    assert free_draft_s(costs, 5, num_tokens) == pytest.approx(brute)


@pytest.mark.parametrize("costs", [COSTS, GROWING])
@pytest.mark.parametrize("num_tokens", range(1, 11))
def test_the_bound_of_the_draft_model_is_the_least_over_all_splits(costs, num_tokens):
    brute = min(chain_sum(costs, 6, ends) for ends in splits(num_tokens - 1))
    assert chain_draft_s(costs, 5, num_tokens) == pytest.approx(brute)


def test_a_draft_that_is_as_slow_as_the_target_is_left_alone():
    slow = Costs.through({1: 10.0, 8: 10.1}, {1: 10.0})
    assert chain_draft_s(slow, 5, num_tokens=9) == pytest.approx(80.0)
    assert free_draft_s(slow, 5, num_tokens=9) == pytest.approx(10.1, abs=0.05)


def test_reading_a_long_prompt_can_cost_the_draft_more_than_it_brings():
    """Opening the draft behind 5 tokens pays, behind 500 it does not."""
    costs = Costs.through({1: 10.0, 8: 12.0}, {1: 0.5, 2: 0.5, 500: 100.0})
    assert chain_draft_s(costs, 5, num_tokens=9) < 80.0
    assert chain_draft_s(costs, 500, num_tokens=9) == pytest.approx(80.0)


def test_a_draft_model_that_reads_little_is_opened_cheaply():
    """Behind 500 tokens, of which it reads 8: 8 drafts of 0.5, and 12 to verify."""
    costs = Costs.through({1: 10.0, 9: 12.0}, {1: 0.5, 8: 0.5, 500: 100.0})
    assert chain_draft_s(costs, 500, 10, context=8) == pytest.approx(12 + 8 * 0.5)
    assert chain_draft_s(costs, 500, 10) == pytest.approx(90.0)
    assert chain_draft_s(costs, 3, 10, context=8) == chain_draft_s(costs, 3, 10)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_text_of_the_prefill_alone_costs_nothing(num_tokens):
    assert free_draft_s(COSTS, 5, num_tokens) == 0.0
    assert chain_draft_s(COSTS, 5, num_tokens) == 0.0


def test_bounds_are_below_every_recorded_step_of_right_drafts():
    """Three steps of a chain of two, accepted whole: priced forward by forward."""
    steps = [
        make_step(2, (1, 1), index, num_unread=2 if index else 4) for index in range(3)
    ]
    result = make_result(steps)
    priced = priced_s(GROWING, result)
    assert priced == pytest.approx(chain_sum(GROWING, 4, (0, 3, 6, 9)))
    assert chain_draft_s(GROWING, 3, len(result.tokens)) <= priced
    assert free_draft_s(GROWING, 3, len(result.tokens)) < priced


def test_a_step_is_priced_by_its_rows():
    """Seven rows of the target, five unread tokens, then a layer of two nodes."""
    wide = make_step(1, (2, 4), num_draft_forwards=2, num_unread=5)
    off = make_step(0, (), num_draft_forwards=0)
    assert priced_s(COSTS, make_result([wide, off])) == pytest.approx(
        (34.0 + 3.0 + 1.5 + 0.5) + (10.0 + 0.5)
    )


def test_a_forward_below_the_tree_that_was_kept_has_a_row():
    pruned = make_step(0, (1,), num_draft_forwards=3, num_unread=1)
    assert priced_s(COSTS, make_result([pruned])) == pytest.approx(11 + 0.5 + 3 * 1.0)


def test_longer_texts_are_priced_as_they_grow():
    result = make_result([make_step(0, ()), make_step(0, ())])
    first, second = (GROWING.target(1, length) + 0.25 for length in (4, 5))
    assert second > first
    assert priced_s(GROWING, result) == pytest.approx(first + second)


def test_the_plan_is_what_was_expected_and_priced_where_nothing_was():
    steps = [make_step(0, (), expected_s=7.0), make_step(0, ())]
    assert planned_s(COSTS, make_result(steps)) == pytest.approx(7.0 + 10.5)
    assert planned_s(COSTS, make_result(steps[1:])) is None
    assert planned_s(COSTS, make_result([])) is None
