"""Controllers decide how much may be spent on the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from treespec.types import Budget, StepRecord

StateT = TypeVar("StateT")


class AbstractController(ABC, Generic[StateT]):
    """Turns what happened so far into the budget of the next step.

    The object holds hyper-parameters only; what it remembers of a request is the state
    that it returns.
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
        """Return the budget of the next step."""

    @abstractmethod
    def observe(self, state: StateT, record: StepRecord) -> StateT:
        """Return the state after a step."""
