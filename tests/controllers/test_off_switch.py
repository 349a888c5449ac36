"""A useless draft costs next to nothing, a good one is left alone."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.controllers.steps import step
from treespec.controllers import AdaptiveDepth, Bandit, Constant, OffSwitch
from treespec.errors import TreespecError
from treespec.types import OFF, Budget, StepRecord

INNER = Constant(4, 1, 4)
Step = Callable[[Budget], StepRecord]


def text(
    switch: OffSwitch, one_step: Step, num_tokens: int
) -> tuple[float, list[Budget]]:
    """Seconds of a text, and its budgets."""
    state, done, seconds, budgets = switch.init(), 0, 0.0, []
    while done < num_tokens:
        budgets.append(switch.budget(state))
        record = one_step(budgets[-1])
        state = switch.observe(state, record)
        done, seconds = done + record.num_committed, seconds + record.step_s
    return seconds, budgets


def drafted(acceptance: float, depth_s: float, seed: int = 0, noise: float = 0.03):
    """Steps with a draft whose tokens are accepted so often; a plain one takes 1 s."""
    luck = random.Random(seed)

    def one_step(budget: Budget) -> StepRecord:
        num_accepted = 0
        while num_accepted < budget.max_depth and luck.random() < acceptance:
            num_accepted += 1
        seconds = 1 + depth_s * budget.max_depth + 0.05 * (budget.max_depth > 0)
        return step(budget, num_accepted, seconds * (1 + noise * luck.random()))

    return one_step


@pytest.mark.parametrize("depth_s", [0.38, 0.05, 0.0])
def test_a_useless_draft_costs_little(depth_s: float) -> None:
    """About ``max_loss`` of a long text, and a little more of a short one."""
    plain_s, _ = text(OffSwitch(Constant(0)), drafted(0.0, depth_s), 2000)
    seconds, budgets = text(OffSwitch(INNER), drafted(0.0, depth_s), 2000)
    assert seconds < 1.02 * plain_s
    assert sum(budget.speculates for budget in budgets) > 10, "it is tried again"
    always_s, _ = text(OffSwitch(INNER, patience=1e9), drafted(0.0, depth_s), 2000)
    assert always_s > 1.04 * plain_s
    plain_s, _ = text(OffSwitch(Constant(0)), drafted(0.0, depth_s), 96)
    seconds, _ = text(OffSwitch(INNER), drafted(0.0, depth_s), 96)
    assert seconds < 1.025 * plain_s


def test_pauses_double_up_to_their_limit_and_trials_are_shallow() -> None:
    switch = OffSwitch(INNER, max_off=100)
    _, budgets = text(switch, drafted(0.0, 0.5), 600)
    pauses, length = [], 0
    for budget in budgets:
        if budget.speculates:
            assert budget == Budget(1, 1, 4)
        if not budget.speculates:
            length += 1
        elif length:
            pauses.append(length)
            length = 0
    assert pauses[:2] == [2, 38]
    assert pauses[2] == 76
    assert set(pauses[3:]) == {100}


@pytest.mark.parametrize("inner", [INNER, AdaptiveDepth()], ids=repr)
def test_a_good_draft_is_left_alone(inner) -> None:
    for seed in range(5):
        _, budgets = text(OffSwitch(inner), drafted(0.9, 0.05, seed), 400)
        assert budgets[:2] == [OFF, OFF]
        assert sum(budget == OFF for budget in budgets) == 2
        assert sum(budget.max_depth > 1 for budget in budgets) > 0.8 * len(budgets)


def test_a_draft_that_becomes_useful_is_used_again_and_one_that_stops_is_not() -> None:
    useless, good = drafted(0.0, 0.3), drafted(1.0, 0.05)
    switch, count = OffSwitch(INNER, max_off=64), 0

    def changes(budget: Budget) -> StepRecord:
        nonlocal count
        count += 1
        return (good if 200 <= count < 400 else useless)(budget)

    _, budgets = text(switch, changes, 1600)
    assert sum(budget.speculates for budget in budgets[50:199]) < 10
    assert all(budget == INNER.largest for budget in budgets[270:399])
    after = budgets[404:]
    assert INNER.largest not in after
    assert 0 < sum(budget.speculates for budget in after) < 0.05 * len(after)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_seconds_that_cannot_be_decide_nothing(seconds: float) -> None:
    """Public case 45. Every seventh step, the second one of a text among them."""
    good, count = drafted(0.95, 0.05, noise=0.0), 0

    def sometimes(budget: Budget) -> StepRecord:
        nonlocal count
        count += 1
        bad = count % 7 == 2
        return replace(good(budget), step_s=seconds) if bad else good(budget)

    switch, state, budgets = OffSwitch(INNER), None, []
    state = switch.init()
    for _ in range(200):
        budgets.append(switch.budget(state))
        state = switch.observe(state, sometimes(budgets[-1]))
    assert sum(not budget.speculates for budget in budgets) == 2


def test_without_any_believable_second_speculation_goes_on() -> None:
    def timeless(budget: Budget) -> StepRecord:
        return step(budget, 0, 0.0)

    _, budgets = text(OffSwitch(INNER), timeless, 50)
    assert sum(budget.speculates for budget in budgets) == 48


def test_reading_the_prompt_is_not_held_against_the_draft() -> None:
    """A draft model reads the whole prompt in its first step: 20 plain steps long."""
    switch = OffSwitch(INNER, plain_s=1.0)
    reads = replace(step(Budget(1, 1, 4), 1, 20.0), num_unread=700)
    state = switch.observe(switch.init(), reads)
    assert (state.loss, state.num_tried) == (0.0, 1)
    assert switch.observe(state, reads).loss > 0, "later steps do not catch up"
    assert switch.observe(switch.init(), replace(reads, num_unread=0)).loss > 0


def test_known_seconds_need_no_plain_steps() -> None:
    _, budgets = text(OffSwitch(INNER, plain_s=1.0), drafted(0.9, 0.05), 50)
    assert all(budget.speculates for budget in budgets)
    _, budgets = text(OffSwitch(INNER, plain_s=1.0), drafted(0.0, 0.4), 38)
    assert [budget.speculates for budget in budgets] == [True] * 2 + [False] * 36


def test_the_wrapped_controller_is_told_of_its_own_steps_only() -> None:
    switch = OffSwitch(AdaptiveDepth())
    state = switch.init()
    for _ in range(2):
        state = switch.observe(state, step(OFF, 0, 1.0))
        assert state.inner == AdaptiveDepth().init()
    budget = switch.budget(state)
    state = switch.observe(state, step(budget, 1, 1.0))
    assert state.inner == AdaptiveDepth().observe(
        AdaptiveDepth().init(), step(budget, 1, 1.0)
    )


def test_plain_steps_of_the_wrapped_controller_are_no_trial() -> None:
    """A bandit may want a plain step by itself: it tells what one takes, no more."""
    switch = OffSwitch(Bandit([[0, 1, 0], [4, 1, 4]]), plain_s=1.0)
    state = switch.observe(switch.init(), step(OFF, 0, 5.0))
    assert (state.num_tried, state.loss, state.plain_s) == (0, 0.0, (1.0, 5.0))


def test_the_largest_budget_is_the_wrapped_ones() -> None:
    assert OffSwitch(INNER).largest == INNER.largest


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"controller": 3}, "controller.controller must be a controller, got 3"),
        ({"max_loss": 0.0}, "controller.max_loss must be > 0 and < 1.0, got 0.0"),
        ({"max_loss": 1.0}, "controller.max_loss must be > 0 and < 1.0, got 1.0"),
        ({"patience": float("nan")}, "controller.patience must be > 0"),
        ({"trial_depth": 0}, "controller.trial_depth must be an integer >= 1"),
        ({"max_off": 0}, "controller.max_off must be an integer >= 1"),
        ({"num_plain": 0}, "controller.num_plain must be an integer >= 1"),
        ({"plain_s": 0.0}, "controller.plain_s must be > 0"),
        ({"plain_s": "1"}, "controller.plain_s must be a number, got '1'"),
    ],
)
def test_impossible_switches_are_refused(arguments, says: str) -> None:
    with pytest.raises(TreespecError) as error:
        OffSwitch(**({"controller": INNER} | arguments))
    assert says in str(error.value)
