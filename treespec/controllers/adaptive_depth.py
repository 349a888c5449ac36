"""Deeper where drafts are accepted, shallower where they are not."""

from __future__ import annotations

from dataclasses import dataclass

from treespec.controllers.base import AbstractController
from treespec.controllers.depths import budget_of_depth, check_depths
from treespec.errors import TreespecError, require_number
from treespec.types import Budget, StepRecord


@dataclass(frozen=True, slots=True)
class DepthState:
    """What ``AdaptiveDepth`` remembers of a request.

    Attributes:
        depth: Depth of the next tree.
        beta: Moving average of the acceptance.
    """

    depth: int
    beta: float


@dataclass(frozen=True, slots=True)
class AdaptiveDepth(AbstractController[DepthState]):
    """Moves the depth by one when the acceptance rate leaves a band.

    A step's acceptance is accepted tokens over layers verified: for a chain, over
    drafted tokens. It falls with depth for any draft but a perfect one, so the depth
    settles where it lies within the band. Steps without a draft tell nothing and change
    nothing. The average starts in the middle of the band. Speculation is never turned
    off: ``OffSwitch`` does that.

    After any past, a draft of which nothing is accepted is back at ``min_depth`` within
    ``ceil(log(shrink_below) / log(1 - rate)) + max_depth - min_depth`` steps, one of
    which all is accepted at ``max_depth`` likewise with ``1 - grow_above``.

    Attributes:
        max_depth: Largest depth.
        min_depth: Smallest depth, >= 1.
        start_depth: Depth of a request's first tree.
        max_width: Most nodes in one layer.
        max_nodes: Most nodes in all; ``None`` gives every layer its full width.
        grow_above: One deeper while the average is above this, in [0, 1].
        shrink_below: One less deep while it is below this, in [0, 1].
        rate: Weight of the newest step in the average, in (0, 1].
    """

    max_depth: int = 8
    min_depth: int = 1
    start_depth: int = 4
    max_width: int = 1
    max_nodes: int | None = None
    grow_above: float = 0.8
    shrink_below: float = 0.5
    rate: float = 0.2

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_depths(self.min_depth, self.start_depth, self.max_depth)
        for name in ("grow_above", "shrink_below", "rate"):
            require_number(f"controller.{name}", getattr(self, name))
        if not 0 <= self.shrink_below <= self.grow_above <= 1:
            raise TreespecError(
                "controller.shrink_below and grow_above must be in [0, 1], in this "
                f"order, got {self.shrink_below} and {self.grow_above}"
            )
        if not 0 < self.rate <= 1:
            raise TreespecError(
                f"controller.rate must be in (0, 1], got {self.rate}; 1 looks at the "
                "last step only"
            )
        _ = self.largest

    @property
    def largest(self) -> Budget:
        """The budget of the largest depth."""
        return budget_of_depth(self.max_depth, self.max_width, self.max_nodes)

    def init(self) -> DepthState:
        """Return the first depth, and an average that moves nothing yet."""
        return DepthState(self.start_depth, (self.shrink_below + self.grow_above) / 2)

    def budget(self, state: DepthState) -> Budget:
        """Return the budget of the depth."""
        return budget_of_depth(state.depth, self.max_width, self.max_nodes)

    def observe(self, state: DepthState, record: StepRecord) -> DepthState:
        """Return the depth after one more acceptance."""
        if record.depth == 0:
            return state
        acceptance = record.num_accepted / record.depth
        beta = state.beta + self.rate * (acceptance - state.beta)
        depth = state.depth
        if beta > self.grow_above:
            depth = min(depth + 1, self.max_depth)
        elif beta < self.shrink_below:
            depth = max(depth - 1, self.min_depth)
        return DepthState(depth, beta)
