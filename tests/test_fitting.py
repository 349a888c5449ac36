"""From timings to a curve: what counts, and what does not move it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.errors import TreespecError
from treespec.fitting import Size, fit_curve, isotonic, medians


def near(*pairs: tuple[int, float], length: int = 64) -> dict[Size, list[float]]:
    """Return three equal timings of each number of rows."""
    return {Size(num_rows, length): [seconds] * 3 for num_rows, seconds in pairs}


def test_the_medians_are_the_knots() -> None:
    timings = near((1, 1.0), (2, 1.1), (8, 3.0))
    timings[Size(2, 64)] = [1.1, 1.0, 1.2]
    curve = fit_curve(timings, "forwards")
    assert (curve.rows, curve.seconds) == ((1, 2, 8), (1.0, 1.1, 3.0))
    assert (curve.length, curve.error) == (64, 0)


def test_an_outlier_moves_nothing() -> None:
    calm = near((1, 1.0), (2, 1.1), (8, 3.0))
    noisy = {size: [*seconds[:2], 100.0] for size, seconds in calm.items()}
    assert fit_curve(noisy, "forwards") == fit_curve(calm, "forwards")


def test_of_two_timings_the_faster_one_counts() -> None:
    assert medians({Size(1, 64): [50.0, 1.0]}) == {Size(1, 64): 1.0}


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 0.0, -3.0])
def test_what_is_no_time_is_dropped(poison: float) -> None:
    calm = near((1, 1.0), (2, 1.1), (8, 3.0))
    poisoned = {size: [poison, *seconds, poison] for size, seconds in calm.items()}
    poisoned[Size(4, 64)] = [poison]
    assert fit_curve(poisoned, "forwards") == fit_curve(calm, "forwards")


@pytest.mark.parametrize(
    "timings",
    [
        {},
        near((1, 1.0)),
        near((1, math.nan), (2, 0.0), (4, 1.0)),
    ],
)
def test_too_few_timings_are_told_in_one_line(timings) -> None:
    with pytest.raises(TreespecError, match=r"target forwards: of .* too few") as told:
        fit_curve(timings, "target forwards")
    assert "\n" not in str(told.value)
    assert "force=true" in str(told.value)


def test_a_size_that_seems_faster_than_a_smaller_one_is_averaged_with_it() -> None:
    curve = fit_curve(near((1, 1.0), (2, 1.4), (3, 1.2), (4, 2.0)), "forwards")
    assert curve.seconds == pytest.approx((1.0, 1.3, 1.3, 2.0))
    shares = (0, 1.3 / 1.4 - 1, 1.3 / 1.2 - 1, 0)
    assert curve.error == pytest.approx(math.sqrt(sum(s * s for s in shares) / 4))


def test_longer_texts_cost_by_the_token_and_by_rows() -> None:
    timings = near((1, 1.0), (8, 2.0), (16, 3.0))
    timings |= near((1, 1.5), (8, 4.0), length=564)
    timings |= near((1, 2.0), (8, 6.0), length=1064)
    curve = fit_curve(timings, "forwards")
    assert (curve.length, curve.token_rows) == (64, (1, 8))
    assert curve.token_s == pytest.approx((0.001, 0.004))
    assert curve.at(1, 2064) == pytest.approx(3.0)
    assert curve.at(8, 2064) == pytest.approx(10.0)
    assert curve.error == pytest.approx(0, abs=1e-12)


def test_a_longer_text_that_seems_cheaper_costs_nothing_more() -> None:
    timings = near((1, 1.0), (8, 2.0)) | near((1, 0.9), length=564)
    curve = fit_curve(timings, "forwards")
    assert curve.token_s == (0.0,)
    assert curve.error > 0.05


repeatable = settings(derandomize=True, deadline=None, max_examples=60)
numbers = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@repeatable
@given(numbers, numbers)
def test_no_sequence_that_never_falls_is_closer(values, others) -> None:
    found = isotonic(values)
    assert list(found) == sorted(found)

    def squares(sequence) -> float:
        return sum((a - b) ** 2 for a, b in zip(sequence, values, strict=True))

    rival = sorted((others * len(values))[: len(values)])
    assert squares(found) <= squares(rival) + 1e-9
