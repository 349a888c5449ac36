"""Which of a few budgets commits the most tokens per second?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treespec.controllers.base import AbstractController
from treespec.controllers.timing import typical_seconds, with_seconds
from treespec.errors import TreespecError, require_number
from treespec.types import Budget, StepRecord


@dataclass(frozen=True, slots=True)
class Arm:
    """What is known of one budget.

    Attributes:
        num_steps: Steps that had it.
        num_tokens: Tokens that they committed.
        seconds: Seconds of the newest of them, if they can be believed.
    """

    num_steps: int = 0
    num_tokens: int = 0
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Bandit(AbstractController[tuple[Arm, ...]]):
    """UCB1 over budgets; the reward is committed tokens per second.

    Every budget is tried once, in the given order. Then the one with the largest
    ``rate / best rate + exploration * sqrt(2 * ln(steps) / its own steps)`` is next, so
    that one that is tried rarely has its turn again. A rate is mean tokens over median
    seconds: tokens are counted, so they may be averaged, but a second that an outlier
    took, or none at all, must not count. A budget without a believable second is taken
    to cost what the others do. Steps that the remaining length gave less than the
    budget count nowhere.

    Attributes:
        budgets: The budgets; each may be written as depth, width and nodes.
        exploration: Factor on the bonus, >= 0. 1 is UCB1's own, made for any reward
            between 0 and 1; less suits texts of a few hundred steps.
        step_costs: What a step of each budget costs, in any unit, instead of measured
            seconds: then budgets depend on tokens alone.
    """

    budgets: tuple[Budget, ...]
    exploration: float = 0.3
    step_costs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and make budgets of lists."""
        object.__setattr__(self, "budgets", _as_budgets(self.budgets))
        require_number("controller.exploration", self.exploration)
        if not 0 <= self.exploration < math.inf:
            raise TreespecError(
                f"controller.exploration must be >= 0, got {self.exploration}"
            )
        if self.step_costs is not None:
            costs = tuple(self.step_costs)
            _check_costs(costs, len(self.budgets))
            object.__setattr__(self, "step_costs", costs)

    @property
    def largest(self) -> Budget:
        """The least budget that has room for all of them."""
        return Budget(
            max(budget.max_depth for budget in self.budgets),
            max(budget.max_width for budget in self.budgets),
            max(budget.max_nodes for budget in self.budgets),
        )

    def init(self) -> tuple[Arm, ...]:
        """Return budgets of which nothing is known."""
        return (Arm(),) * len(self.budgets)

    def budget(self, state: tuple[Arm, ...]) -> Budget:
        """Return the budget with the largest upper bound."""
        return self.budgets[self._next(state)]

    def observe(self, state: tuple[Arm, ...], record: StepRecord) -> tuple[Arm, ...]:
        """Return what is known after a step of the budget that was next."""
        index = self._next(state)
        had = Budget(record.max_depth, record.max_width, record.max_nodes)
        if had != self.budgets[index]:
            return state
        arm = state[index]
        seen = Arm(
            num_steps=arm.num_steps + 1,
            num_tokens=arm.num_tokens + record.num_committed,
            seconds=with_seconds(arm.seconds, record.step_s),
        )
        return (*state[:index], seen, *state[index + 1 :])

    def _next(self, arms: tuple[Arm, ...]) -> int:
        """Return which budget is next; of equal ones the first."""
        bounds = self._bounds(arms)
        return bounds.index(max(bounds))

    def _bounds(self, arms: tuple[Arm, ...]) -> list[float]:
        """Return every budget's upper bound; infinite if it was never tried."""
        if not all(arm.num_steps for arm in arms):
            return [0.0 if arm.num_steps else math.inf for arm in arms]
        costs = self.step_costs or _seconds(arms)
        rates = [
            arm.num_tokens / arm.num_steps / cost
            for arm, cost in zip(arms, costs, strict=True)
        ]
        best, log_steps = max(rates), math.log(sum(arm.num_steps for arm in arms))
        return [
            rate / best + self.exploration * math.sqrt(2 * log_steps / arm.num_steps)
            for rate, arm in zip(rates, arms, strict=True)
        ]


def _seconds(arms: Sequence[Arm]) -> list[float]:
    """Return the typical seconds of a step of each budget."""
    everywhere = [seconds for arm in arms for seconds in arm.seconds]
    otherwise = typical_seconds(everywhere) or 1.0
    return [typical_seconds(arm.seconds) or otherwise for arm in arms]


def _as_budgets(budgets: Sequence[object]) -> tuple[Budget, ...]:
    """Return budgets that were given as such, or as depth, width and nodes."""
    rule = (
        "controller.budgets must be a list of depth, width and nodes, such as "
        f"[[0,1,0],[4,2,8]], got {budgets!r}"
    )
    if not isinstance(budgets, list | tuple) or not budgets:
        raise TreespecError(rule)
    made = []
    for number, budget in enumerate(budgets):
        if isinstance(budget, list | tuple) and len(budget) == 3:
            made.append(_as_budget(budget, f"controller.budgets[{number}]"))
        elif isinstance(budget, Budget):
            made.append(budget)
        else:
            raise TreespecError(rule)
    if len(set(made)) < len(made):
        raise TreespecError(
            f"controller.budgets must differ from each other, got {budgets!r}"
        )
    return tuple(made)


def _as_budget(numbers: Sequence[int], key: str) -> Budget:
    try:
        return Budget(*numbers)
    except TreespecError as error:
        raise TreespecError(f"{key}: {error}") from error


def _check_costs(costs: Sequence[float], num_budgets: int) -> None:
    for cost in costs:
        require_number("controller.step_costs", cost)
    if len(costs) != num_budgets or not all(0 < cost < math.inf for cost in costs):
        raise TreespecError(
            f"controller.step_costs must be a number > 0 for each of the {num_budgets} "
            f"controller.budgets, got {list(costs)}"
        )
