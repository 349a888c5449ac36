"""Steps as a controller is told of them, and controllers that are told of many."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from treespec.controllers import AbstractController
from treespec.testing.controller_cases import Event
from treespec.types import Budget, StepRecord


def step(budget: Budget, num_accepted: int, step_s: float = 0.01) -> StepRecord:
    """A step that spent its budget, and of whose tree so many layers were kept."""
    record = Event().record(0, budget)
    assert num_accepted <= record.depth
    return replace(
        record,
        num_accepted=num_accepted,
        num_committed=num_accepted + 1,
        next_kind="bonus" if num_accepted == record.depth else "recovered",
        step_s=step_s,
    )


def told(
    controller: AbstractController[Any],
    steps: Iterable[Callable[[Budget], StepRecord]],
) -> list[Budget]:
    """The budgets before each of the steps, and after them."""
    state = controller.init()
    budgets = [controller.budget(state)]
    for record in steps:
        state = controller.observe(state, record(budgets[-1]))
        budgets.append(controller.budget(state))
    return budgets


def accepts(budget: Budget) -> StepRecord:
    return Event().record(0, budget)


def rejects(budget: Budget) -> StepRecord:
    return Event(accepts=False).record(0, budget)


def drafts_nothing(budget: Budget) -> StepRecord:
    return Event(drafts=False).record(0, budget)
