"""The same budget for every step."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.controllers.base import AbstractController
from treespec.types import Budget, StepRecord


@dataclass(frozen=True, slots=True)
class Constant(AbstractController[None]):
    """Gives the same budget to every step; depth 0 is autoregressive decoding.

    Attributes:
        max_depth: Deepest node; 0 turns speculation off.
        max_width: Most nodes in one layer.
        max_nodes: Most drafted nodes in a tree, the root excluded.
    """

    max_depth: int
    max_width: int = 1
    max_nodes: int = 64

    def __post_init__(self) -> None:
        """Check the bounds by building the budget once."""
        _ = self.largest

    @property
    def largest(self) -> Budget:
        """The one budget."""
        return Budget(self.max_depth, self.max_width, self.max_nodes)

    def init(self) -> None:
        """Return no state."""

    def budget(self, state: None) -> Budget:
        """Return the one budget."""
        return self.largest

    def observe(self, state: None, record: StepRecord) -> None:
        """Learn nothing."""
