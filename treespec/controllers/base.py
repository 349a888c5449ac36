"""Controllers decide how much may be spent on the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from treespec.types import Budget, StepRecord

StateT = TypeVar("StateT")


class AbstractController(ABC, Generic[StateT]):
    """Turns what happened so far into the budget of the next step.

    The object holds hyper-parameters only; what it remembers of a request is the state
    that it returns. All three methods are functions of their arguments, so that a
    request's records give its budgets again: see ``replay``.
    """

    @property
    @abstractmethod
    def largest(self) -> Budget:
        """The largest budget it will ever give; caches are sized by it."""

    @abstractmethod
    def init(self) -> StateT:
        """Return the state at the start of a request."""

    @abstractmethod
    def budget(self, state: StateT) -> Budget:
        """Return the budget of the next step; leaves the state as it is."""

    @abstractmethod
    def observe(self, state: StateT, record: StepRecord) -> StateT:
        """Return the state after a step."""


def replay(
    controller: AbstractController[Any], records: Iterable[StepRecord]
) -> Iterator[Budget]:
    """Yield the budget of every step of a request, from its records alone.

    A step whose ``budget_by`` is ``limit`` had less: no deeper tree than the text had
    room for.
    """
    state = controller.init()
    for record in records:
        yield controller.budget(state)
        state = controller.observe(state, record)
