"""What was expected against what came, by hand."""

import json
import math
from dataclasses import replace

import pytest

from tests.outcomes import STEP_S, make_outcome, make_step, make_steps
from treespec.forecasts import forecast_quality, off_share, reason_share
from treespec.metrics import summarize


def planned(accepted, expected, seconds=STEP_S, **changes):
    """Return a step that expected to accept some tokens in some seconds."""
    return make_step(
        accepted,
        (1, 1, 1),
        expected_accepted=expected,
        expected_s=seconds,
        **changes,
    )


def test_accepted_tokens_are_compared_with_the_expected_ones_bin_by_bin():
    steps = [planned(0, 0.5), planned(3, 2.25), planned(1, 2.75), planned(2, 0.5)]
    found = forecast_quality(steps)
    assert found["num_forecasts"] == 4
    assert found["expected_accepted_per_step"] == pytest.approx(1.5)
    assert found["forecast_accepted_per_step"] == pytest.approx(1.5)
    assert found["accepted_by_expected"] == [
        {"low": 0, "num_steps": 2, "expected_accepted": 0.5, "num_accepted": 1.0},
        {"low": 2, "num_steps": 2, "expected_accepted": 2.5, "num_accepted": 2.0},
    ]


def test_a_step_that_was_cut_says_nothing_of_acceptance_but_of_time():
    """The text ended inside of an accepted path; the forecast was not to blame."""
    cut = make_step(
        3, (1, 1, 1), expected_accepted=3.0, expected_s=2 * STEP_S, num_committed=3
    )
    found = forecast_quality([_without_end(cut), planned(1, 1.0)])
    assert found["num_forecasts"] == 1
    assert found["expected_accepted_per_step"] == 1.0
    assert found["step_time_ratio"] == pytest.approx(2 / 3)


def test_steps_are_timed_by_totals_and_by_the_median():
    """One step of three was interrupted for a second."""
    steps = [
        planned(1, 1.0, STEP_S),
        planned(1, 1.0, 2 * STEP_S),
        planned(1, 1.0, STEP_S, step_s=1.0),
    ]
    found = forecast_quality(steps)
    assert found["step_time_ratio"] == pytest.approx((1.0 + 2 * STEP_S) / (4 * STEP_S))
    assert found["median_step_time_ratio"] == pytest.approx(1.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, None])
def test_an_expected_time_that_is_none_divides_nothing(seconds):
    found = forecast_quality([planned(1, 1.0, seconds)])
    assert found["step_time_ratio"] is None
    assert found["median_step_time_ratio"] is None
    assert found["num_forecasts"] == 1


@pytest.mark.parametrize("steps", [(), make_steps((2, 0), (1, 1))])
def test_without_forecasts_there_are_no_numbers(steps):
    found = forecast_quality(steps)
    assert found.pop("num_forecasts") == 0
    assert found.pop("accepted_by_expected") == []
    assert set(found.values()) == {None}
    assert reason_share(steps) is None


def test_a_number_that_is_none_does_not_reach_the_files():
    outcome = make_outcome()
    steps = (planned(1, math.nan), *outcome.speculative.steps)
    summary = summarize([_with_steps(outcome, steps)], wall_s=1.0)
    json.dumps(summary, allow_nan=False)
    assert summary["forecast"]["num_forecasts"] == 0


def test_reasons_are_shares_of_all_steps_the_most_frequent_first():
    reasons = ["off: too slow", "lookup", "lookup", None, "off", "lookup", "a", "off"]
    steps = [make_step(0, (1,), reason=reason) for reason in reasons]
    shares = reason_share(steps)
    assert shares == {"lookup": 3 / 8, "off": 2 / 8, "a": 1 / 8, "off: too slow": 1 / 8}
    assert list(shares) == ["lookup", "off", "a", "off: too slow"]
    assert off_share(shares) == {"": 2 / 8, "too slow": 1 / 8}


def test_a_reason_that_merely_begins_like_off_is_not_off():
    assert off_share({"offset": 1.0}) == {}


def _without_end(step):
    return replace(step, next_kind=None)


def _with_steps(outcome, steps):
    return replace(outcome, speculative=replace(outcome.speculative, steps=steps))
