"""Cost curves, costs and their file; the closed form for chains."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.closed_form import (
    break_even_acceptance,
    break_even_tokens,
    token_s,
    tokens_per_forward,
)
from treespec.costs import CostCurve, Costs
from treespec.errors import TreespecError

CURVE = CostCurve(
    rows=(1, 4, 8, 16),
    seconds=(1.0, 1.0, 1.2, 2.0),
    length=64,
    token_rows=(1, 9),
    token_s=(0.001, 0.005),
    error=0.02,
)
COSTS = Costs(CURVE, CostCurve.through({1: 0.1, 3: 0.2}), step_s=0.01)

repeatable = settings(derandomize=True, deadline=None, max_examples=60)


@pytest.mark.parametrize(
    ("num_rows", "length", "seconds"),
    [
        (0, 0, 1.0),
        (1, 64, 1.0),
        (3, 0, 1.0),
        (6, 0, 1.1),
        (12, 0, 1.6),
        (16, 10, 2.0),
        (24, 64, 2.8),  # 0.1 a row, as from 8 to 16
        (1, 164, 1.1),
        (5, 164, 1.05 + 100 * 0.003),
        (17, 164, 2.1 + 100 * 0.009),
    ],
)
def test_a_curve_is_a_broken_line_that_goes_on(num_rows, length, seconds) -> None:
    assert CURVE.at(num_rows, length) == pytest.approx(seconds)


def test_two_equal_last_knots_do_not_make_more_rows_free() -> None:
    curve = CostCurve.through({1: 1.0, 4: 1.0, 6: 2.0, 8: 2.0})
    assert curve.at(16) == pytest.approx(2.0 + 8 * 0.25)


steps = st.lists(st.tuples(st.integers(1, 40), st.floats(0, 2)), min_size=1, max_size=6)


@repeatable
@given(steps, steps, st.integers(0, 100))
def test_a_curve_is_positive_finite_and_falls_nowhere(level, slopes, length) -> None:
    def knots(pairs, first):
        rows, values = [], []
        for gap, rise in pairs:
            rows.append((rows[-1] if rows else 0) + gap)
            values.append((values[-1] if values else first) + rise)
        return tuple(rows), tuple(values)

    curve = CostCurve(*knots(level, 0.01), length, *knots(slopes, 0.0))
    sizes = [0, 1, 2, 3, 5, 10, 17, 33, 80, 200, 1000, 10**6]
    grid = [[curve.at(n, at) for n in sizes] for at in (0, 50, 101, 5000, 10**7)]
    columns = [list(column) for column in zip(*grid, strict=True)]
    for values in grid + columns:
        assert all(0 < value < math.inf for value in values)
        for low, high in pairwise(values):
            assert high >= low * (1 - 1e-12)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rows": (1, 1, 8, 16)}, "rows of a cost curve must rise"),
        ({"rows": (0, 4, 8, 16)}, "rows of a cost curve must be an integer >= 1"),
        ({"rows": (1, 4)}, "needs as many seconds as rows"),
        ({"seconds": (1.0, 0.9, 1.2, 2.0)}, "seconds of a cost curve must not fall"),
        ({"seconds": (0.0, 1.0, 1.2, 2.0)}, "seconds of a cost curve must be > 0"),
        ({"seconds": (1.0, 1.0, 1.2, math.inf)}, "must be finite"),
        ({"seconds": (1.0, 1.0, 1.2, math.nan)}, "must be finite"),
        ({"token_s": (-0.1, 0.1)}, "token_s of a cost curve must be finite and >= 0"),
        ({"length": -1}, "length of a cost curve must be an integer >= 0"),
        ({"error": math.nan}, "error of a cost curve must be finite"),
    ],
)
def test_what_is_no_curve_is_refused(change, told: str) -> None:
    with pytest.raises(TreespecError, match=told) as refused:
        replace(CURVE, **change)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("step_s", [-1.0, math.nan, math.inf, "1"])
def test_a_step_outside_of_forwards_takes_seconds(step_s) -> None:
    with pytest.raises(TreespecError, match="step_s must be finite and >= 0"):
        replace(COSTS, step_s=step_s)


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    COSTS.write(tmp_path / "costs.json")
    assert Costs.read(tmp_path / "costs.json") == COSTS
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]


GOOD = json.loads(json.dumps(COSTS.to_json()))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, r".*cannot be read: No such file"),
        ("{", r".*not JSON"),
        ("[]", r".*must hold one JSON object"),
        ("{}", r".*schema None, but this version of treespec reads schema 1"),
        (GOOD | {"schema": 7}, r".*schema 7"),
        (GOOD | {"target": None}, r".*costs cannot be read"),
        (GOOD | {"step_s": -1}, r".*step_s must be finite"),
        (
            GOOD | {"draft": GOOD["draft"] | {"seconds": [2.0, 1.0]}},
            r".*seconds of a cost curve must not fall, got \[2\.0, 1\.0\]",
        ),
        ({k: v for k, v in GOOD.items() if k != "draft"}, r".*KeyError: 'draft'"),
    ],
)
def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path, content, told) -> None:
    path = tmp_path / "costs.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(TreespecError) as refused:
        Costs.read(path)
    message = str(refused.value)
    assert re.match(told, message)
    assert message.endswith("write it anew with treespec profile")
    assert "\n" not in message


FLAT = Costs.through({1: 10.0, 64: 10.0}, {1: 1.0})
"""T = 10 whatever the rows are, D = 1."""


def test_tokens_per_forward_are_the_papers() -> None:
    assert tokens_per_forward(0.5, 2) == pytest.approx(1.75)
    assert tokens_per_forward(0.8, 5) == pytest.approx((1 - 0.8**6) / 0.2)
    assert tokens_per_forward(0.0, 3) == 1
    assert tokens_per_forward(1.0, 3) == 4  # where the quotient is 0 / 0


def test_a_chain_takes_the_articles_time_per_token() -> None:
    assert token_s(FLAT, 2, 1.75) == pytest.approx((2 * 1 + 10) / 1.75)
    assert break_even_tokens(FLAT, 5) == pytest.approx(1.5)
    assert token_s(FLAT, 5, break_even_tokens(FLAT, 5)) == pytest.approx(10)


def test_a_chain_breaks_even_at_a_rate_that_can_be_worked_out() -> None:
    # 1 + alpha = 1.1; and an endless chain would have 1 / (1 - alpha) = 1.5.
    assert break_even_acceptance(FLAT, 1) == pytest.approx(0.1)
    rate = break_even_acceptance(FLAT, 5)
    assert rate is not None
    assert 1 / 3 < rate < 0.335
    assert tokens_per_forward(rate, 5) == pytest.approx(1.5)


def test_a_draft_as_slow_as_the_target_pays_at_no_rate() -> None:
    same = Costs.through({1: 10.0}, {1: 10.0})
    slower = Costs.through({1: 10.0}, {1: 10.1})
    assert break_even_acceptance(same, 4) == pytest.approx(1.0)
    assert break_even_acceptance(slower, 4) is None


def test_the_closed_form_pays_for_the_rows_and_the_text() -> None:
    costs = replace(FLAT, target_curve=CostCurve((1, 3), (10.0, 12.0), 0, (1,), (0.1,)))
    assert break_even_tokens(costs, 2, length=10) == pytest.approx((2 + 13) / 11)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: token_s(FLAT, 0, 2.0), "gamma must be an integer >= 1, got 0"),
        (lambda: token_s(FLAT, 2, 0.5), "num_tokens must be a number >= 1, got 0.5"),
        (lambda: tokens_per_forward(1.5, 2), r"alpha must be in \[0, 1\], got 1.5"),
        (lambda: break_even_acceptance(FLAT, True), "gamma must be an integer >= 1"),
    ],
)
def test_numbers_out_of_bounds_are_told(call, told: str) -> None:
    with pytest.raises(TreespecError, match=told):
        call()


def test_costs_are_read_from_a_profile_too_and_from_a_path_in_a_configuration(
    tmp_path: Path,
) -> None:
    """The key and its message named a way that no command line could go."""
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"schema": 1, "costs": COSTS.to_json()}))
    assert Costs.read(str(path)) == COSTS


@pytest.mark.parametrize("content", ["[" * 100_000, "\0", '{"schema": '])
def test_a_torn_or_hostile_file_is_told_in_one_line(tmp_path: Path, content) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(TreespecError) as refused:
        Costs.read(path)
    assert "\n" not in str(refused.value)
    assert "not JSON" in str(refused.value)


def test_an_integer_too_large_for_a_float_is_no_seconds() -> None:
    with pytest.raises(TreespecError):
        CostCurve((1, 2), (1.0, 10**400))
