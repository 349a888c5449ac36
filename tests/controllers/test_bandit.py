"""The budget that commits most per second is found, whatever clocks say."""

from collections import Counter

import pytest

from tests.controllers.steps import step, told
from treespec.controllers import Bandit
from treespec.errors import TreespecError
from treespec.types import OFF, Budget, StepRecord

DEEP, MIDDLE = Budget(8, 1, 8), Budget(2, 1, 2)
BUDGETS = (OFF, MIDDLE, DEEP)
SECONDS = {OFF: 1.0, MIDDLE: 1.2, DEEP: 3.0}
NAN = float("nan")


def runs(budget: Budget) -> StepRecord:
    """Two drafts are right, no more: the middle budget earns 3 / 1.2."""
    return step(budget, min(2, budget.max_depth), SECONDS[budget])


def played(bandit: Bandit, steps) -> Counter[Budget]:
    return Counter(told(bandit, steps)[:-1])


def test_every_budget_is_tried_and_the_best_one_prevails() -> None:
    budgets = told(Bandit(BUDGETS), [runs] * 200)
    assert budgets[:3] == list(BUDGETS)
    assert Counter(budgets)[MIDDLE] > 150
    assert {OFF, DEEP} <= set(budgets[20:])


def test_the_bonus_is_that_of_a_budgets_own_steps() -> None:
    """A bonus from the sum of all calls is the same for every arm, hence none.

    BanditSpec's code had that: after the first round it took the best mean for ever,
    even one that one lucky step had made.
    """
    seen = Counter()

    def lucky_first(budget: Budget) -> StepRecord:
        seen[budget] += 1
        lucky = budget == DEEP and seen[DEEP] == 1
        return step(budget, 8, 1.0) if lucky else runs(budget)

    assert played(Bandit(BUDGETS), [lucky_first] * 100).most_common(1)[0][0] == MIDDLE

    seen.clear()

    def unlucky_first(budget: Budget) -> StepRecord:
        seen[budget] += 1
        unlucky = budget == MIDDLE and seen[MIDDLE] == 1
        return step(budget, 0, 1.2) if unlucky else runs(budget)

    assert played(Bandit(BUDGETS), [unlucky_first] * 200)[MIDDLE] > 100


def test_ucb1_by_hand() -> None:
    """Rates 1 and 2; after 1 and 3 steps the bonus of the first is larger."""
    two = (OFF, Budget(1, 1, 1))

    def both(budget: Budget) -> StepRecord:
        return step(budget, budget.max_depth, 1.0)

    # sqrt(2 ln 4) = 1.665 against 0.961: with a factor of 0.7, 0.5 + 1.166 = 1.666
    # against 1 + 0.673 = 1.673; with 0.75, 1.749 against 1.721.
    assert told(Bandit(two, exploration=0.7), [both] * 4)[-1] == two[1]
    assert told(Bandit(two, exploration=0.7), [both] * 4)[:4] == [*two, two[1], two[1]]
    assert told(Bandit(two, exploration=0.75), [both] * 4)[-1] == OFF
    assert played(Bandit(two, exploration=0.0), [both] * 50)[OFF] == 1


@pytest.mark.parametrize("seconds", [0.0, -1.0, NAN, float("inf"), 1e9, 1e-300])
def test_seconds_that_cannot_be_do_not_poison_the_choice(seconds: float) -> None:
    """Public case 45. Every seventh step, and the very first ones."""
    count = 0

    def sometimes(budget: Budget) -> StepRecord:
        nonlocal count
        count += 1
        bad = count % 7 == 1
        return step(budget, min(2, budget.max_depth), seconds) if bad else runs(budget)

    assert played(Bandit(BUDGETS), [sometimes] * 300)[MIDDLE] > 200


def test_with_no_clock_at_all_tokens_decide() -> None:
    def timeless(budget: Budget) -> StepRecord:
        return step(budget, min(2, budget.max_depth), NAN)

    counts = played(Bandit(BUDGETS), [timeless] * 100)
    assert counts[OFF] < min(counts[MIDDLE], counts[DEEP])


def test_given_costs_make_the_choice_one_of_tokens_alone() -> None:
    bandit = Bandit(BUDGETS, step_costs=(1.0, 1.2, 3.0))

    def any_time(budget: Budget) -> StepRecord:
        return step(budget, min(2, budget.max_depth), NAN)

    assert told(bandit, [any_time] * 99) == told(bandit, [runs] * 99)
    assert played(bandit, [any_time] * 200)[MIDDLE] > 150


def test_a_step_that_had_less_than_its_budget_counts_nowhere() -> None:
    bandit = Bandit(BUDGETS)
    state = bandit.observe(bandit.init(), runs(OFF))
    assert bandit.budget(state) == MIDDLE
    assert bandit.observe(state, runs(MIDDLE)) != state
    limited = step(Budget(1, 1, 2), 1, 1.0)
    assert bandit.observe(state, limited) == state


def test_the_largest_budget_has_room_for_all() -> None:
    assert Bandit([[0, 1, 0], [8, 1, 8], [2, 4, 7]]).largest == Budget(8, 4, 8)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([],), "controller.budgets must be a list of depth, width and nodes"),
        ((3,), "controller.budgets must be a list of depth, width and nodes"),
        (([[1, 2]],), "got [[1, 2]]"),
        (([[1, 1, 1], [1, 1, 1]],), "controller.budgets must differ"),
        (([[0, 1, 0], [1, 0, 1]],), "controller.budgets[1]: max_width must be an"),
        (([[1, 0, 1]],), "max_width must be an integer >= 1, got 0"),
        (([[1, 1, 1]], -1.0), "controller.exploration must be >= 0, got -1.0"),
        (([[1, 1, 1]], NAN), "controller.exploration must be >= 0, got nan"),
        (([[1, 1, 1]], 1.0, [1.0, 2.0]), "for each of the 1 controller.budgets"),
        (([[1, 1, 1]], 1.0, [0.0]), "controller.step_costs must be a number > 0"),
    ],
)
def test_impossible_bandits_are_refused(arguments, says: str) -> None:
    with pytest.raises(TreespecError) as error:
        Bandit(*arguments)
    assert says in str(error.value)
