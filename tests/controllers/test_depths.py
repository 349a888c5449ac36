"""Depth follows the acceptance, and keeps to its limits."""

import math
from itertools import pairwise

import pytest

from tests.controllers.steps import accepts, drafts_nothing, rejects, step, told
from treespec.controllers import AdaptiveDepth, HeuristicDepth
from treespec.errors import TreespecError
from treespec.types import Budget

BOTH = (AdaptiveDepth(max_depth=9), HeuristicDepth(max_depth=9))


@pytest.mark.parametrize("controller", BOTH, ids=repr)
def test_a_draft_that_turns_useless_is_found_out_within_the_stated_steps(
    controller: AdaptiveDepth | HeuristicDepth,
) -> None:
    """Public case 45: 50 rounds that accept all, then 50 that reject all."""
    budgets = told(controller, [accepts] * 50 + [rejects] * 50)
    depths = [budget.max_depth for budget in budgets]
    assert depths[:51] == sorted(depths[:51])
    assert depths[30:51] == [9] * 21
    within = 8
    if isinstance(controller, AdaptiveDepth):
        within += math.ceil(math.log(0.5) / math.log(1 - controller.rate))
        assert depths[50 + within // 2] > 1
    assert set(depths[50 + within :]) == {1}
    assert all(abs(one - next) <= 2 for one, next in pairwise(depths))
    assert controller.largest == Budget(9, 1, 9)


@pytest.mark.parametrize("controller", BOTH, ids=repr)
def test_a_draft_that_turns_useful_is_found_out_as_well(
    controller: AdaptiveDepth | HeuristicDepth,
) -> None:
    depths = [b.max_depth for b in told(controller, [rejects] * 50 + [accepts] * 50)]
    assert depths[50] == 1
    assert depths[50 + 8 + 8] == depths[-1] == 9


@pytest.mark.parametrize("controller", BOTH, ids=repr)
def test_a_step_without_a_draft_changes_nothing(
    controller: AdaptiveDepth | HeuristicDepth,
) -> None:
    state = controller.init()
    for record in (accepts, rejects, accepts):
        state = controller.observe(state, record(controller.budget(state)))
        nothing = drafts_nothing(controller.budget(state))
        assert controller.observe(state, nothing) == state


def test_the_heuristic_is_that_of_transformers() -> None:
    """Two more after a tree that was accepted whole, else one less."""

    def half(budget: Budget):
        return step(budget, budget.max_depth - 1)

    depths = told(HeuristicDepth(), [accepts, half, rejects, accepts, accepts])
    assert [budget.max_depth for budget in depths] == [5, 7, 6, 5, 7, 9]


def test_the_heuristic_has_an_upper_limit() -> None:
    """Public case 45: transformers' has none but the longest text."""
    depths = told(HeuristicDepth(max_depth=6), [accepts] * 40)
    assert {budget.max_depth for budget in depths} == {5, 6}


def test_a_depth_within_the_band_stays() -> None:
    def two_thirds(budget: Budget):
        return step(budget, 4)

    controller = AdaptiveDepth(start_depth=6)
    depths = told(controller, [two_thirds] * 60)
    assert {budget.max_depth for budget in depths} == {6}


def test_a_draft_that_is_right_half_of_the_time_settles_between_the_limits() -> None:
    """Accepted in turns down to layer 1, 2, 3 and to the end: no extreme holds it."""
    controller = AdaptiveDepth(max_depth=20, start_depth=20)
    accepted = [1, 2, 3, 20] * 30
    steps = [lambda b, n=n: step(b, min(n, b.max_depth)) for n in accepted]
    depths = [budget.max_depth for budget in told(controller, steps)][40:]
    assert 2 <= min(depths) <= max(depths) <= 6


def test_the_average_is_an_exponential_one() -> None:
    controller = AdaptiveDepth(rate=0.25, shrink_below=0.4, grow_above=0.8)
    state = controller.init()
    assert state.beta == pytest.approx(0.6)
    state = controller.observe(state, step(Budget(4, 1, 4), 1))
    assert state.beta == pytest.approx(0.75 * 0.6 + 0.25 * 0.25)


def test_nodes_follow_the_depth_unless_they_are_given() -> None:
    assert AdaptiveDepth(start_depth=3, max_width=2).budget(
        AdaptiveDepth(start_depth=3).init()
    ) == Budget(3, 2, 6)
    assert HeuristicDepth(max_width=2, max_nodes=7).budget(3) == Budget(3, 2, 7)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"min_depth": 0}, "controller.min_depth must be an integer >= 1"),
        ({"max_depth": 3, "min_depth": 4}, "controller.max_depth must be an integer"),
        ({"start_depth": 99}, "controller.start_depth must be at most"),
        ({"max_width": 0}, "max_width must be an integer >= 1"),
        ({"max_nodes": -1}, "max_nodes must be an integer >= 0"),
    ],
)
@pytest.mark.parametrize("kind", [AdaptiveDepth, HeuristicDepth])
def test_impossible_depths_are_refused(kind, arguments, says: str) -> None:
    with pytest.raises(TreespecError) as error:
        kind(**arguments)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"grow_above": 0.4}, "in this order, got 0.5 and 0.4"),
        ({"grow_above": float("nan")}, "must be in [0, 1]"),
        ({"rate": 0.0}, "controller.rate must be in (0, 1], got 0.0"),
        ({"rate": "slow"}, "controller.rate must be a number, got 'slow'"),
    ],
)
def test_impossible_bands_are_refused(arguments, says: str) -> None:
    with pytest.raises(TreespecError) as error:
        AdaptiveDepth(**arguments)
    assert says in str(error.value)
