"""The schedule of assisted generation in transformers."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.controllers.base import AbstractController
from treespec.controllers.depths import budget_of_depth, check_depths
from treespec.types import Budget, StepRecord

GROWTH, SHRINKAGE = 2, 1


@dataclass(frozen=True, slots=True)
class HeuristicDepth(AbstractController[int]):
    """Two deeper after a tree that was accepted to its end, else one less deep.

    transformers' ``heuristic`` schedule of assisted generation, but with an upper
    limit, and every request starts anew. Steps without a draft change nothing.

    Attributes:
        max_depth: Largest depth.
        min_depth: Smallest depth, >= 1.
        start_depth: Depth of a request's first tree.
        max_width: Most nodes in one layer.
        max_nodes: Most nodes in all; ``None`` gives every layer its full width.
    """

    max_depth: int = 16
    min_depth: int = 1
    start_depth: int = 5
    max_width: int = 1
    max_nodes: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_depths(self.min_depth, self.start_depth, self.max_depth)
        _ = self.largest

    @property
    def largest(self) -> Budget:
        """The budget of the largest depth."""
        return budget_of_depth(self.max_depth, self.max_width, self.max_nodes)

    def init(self) -> int:
        """Return the first depth."""
        return self.start_depth

    def budget(self, state: int) -> Budget:
        """Return the budget of the depth."""
        return budget_of_depth(state, self.max_width, self.max_nodes)

    def observe(self, state: int, record: StepRecord) -> int:
        """Return the depth after a step."""
        if record.depth == 0:
            return state
        if record.num_accepted == record.depth:
            return min(state + GROWTH, self.max_depth)
        return max(state - SHRINKAGE, self.min_depth)
