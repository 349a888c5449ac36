"""Speculation is off where it does not pay, and is tried again now and then."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from treespec.controllers.base import AbstractController
from treespec.controllers.timing import typical_seconds, with_seconds
from treespec.errors import TreespecError, require_integer, require_number
from treespec.types import OFF, Budget, StepRecord

CREDIT = 0.5
"""Plain steps that a trial must have saved to be believed."""
ONE_STEP = 0.75
"""Most that one step counts, as a share of what turns speculation off."""
MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class SwitchState:
    """What ``OffSwitch`` remembers of a request.

    Attributes:
        inner: What the wrapped controller remembers; it is told of its own steps only.
        plain_s: Seconds of the newest plain steps, if they can be believed.
        num_off: Plain steps to go before speculation is tried.
        loss: Plain steps that speculation lost since it was last turned on.
        is_trusted: Whether its trial is over.
        num_tried: Speculative steps since it was last turned on.
        num_failed: Trials in a row that failed.
    """

    inner: Any
    plain_s: tuple[float, ...]
    num_off: int
    loss: float = 0.0
    is_trusted: bool = False
    num_tried: int = 0
    num_failed: int = 0


@dataclass(frozen=True, slots=True)
class OffSwitch(AbstractController[SwitchState]):
    """Turns another controller off while its estimated gain is below 1.

    A speculative step of ``step_s`` seconds that commits n tokens loses
    ``step_s / plain_s - n`` plain steps, or saves some. What a plain step takes is
    known from the first ``num_plain`` steps, which are plain, and from all later ones.
    Speculation begins with a trial of small trees, for which a draft need not be good
    to be told from a useless one. It is off once the trial has lost ``patience`` plain
    steps, and trusted once it has saved half a one. Later losses are summed from the
    last time there was nothing to make good; four times the patience turns it off.

    It then stays off for ``patience / max_loss`` steps, twice that after each further
    trial that failed, ``max_off`` at most: a trial that fails costs about ``patience``,
    so that this is a share of about ``max_loss`` of a long text. Before that, a text
    pays for its first trial, and for what the draft model reads of the prompt.

    Steps whose seconds cannot be believed are not judged, and no single step turns
    speculation off, however long it took. In the first step of a trial a draft model
    catches up with the text; that is no sign of what later steps cost.

    Attributes:
        controller: The one that says how much is spent while speculation is on.
        max_loss: Share of the time that a useless draft may cost, in (0, 1).
        patience: Plain steps that a trial may lose, > 0.
        trial_depth: Largest depth during a trial, >= 1.
        max_off: Most steps without speculation in a row, >= 1.
        num_plain: Plain steps at the start of a request, >= 1; not needed if
            ``plain_s`` is known.
        plain_s: Seconds of a plain step, if they were measured before.
    """

    controller: AbstractController[Any]
    max_loss: float = 0.02
    patience: float = 0.75
    trial_depth: int = 1
    max_off: int = 512
    num_plain: int = 2
    plain_s: float | None = None

    def __post_init__(self) -> None:
        """Check the wrapped controller and the bounds."""
        if not isinstance(self.controller, AbstractController):
            raise TreespecError(
                "controller.controller must be a controller, got "
                f"{self.controller!r}; give it a _target_, as in "
                "conf/controller/off_switch.yaml"
            )
        for name in ("trial_depth", "max_off", "num_plain"):
            require_integer(f"controller.{name}", getattr(self, name), 1)
        for name, most in (("max_loss", 1.0), ("patience", math.inf)):
            _require_between(name, getattr(self, name), most)
        if self.plain_s is not None:
            _require_between("plain_s", self.plain_s, math.inf)

    @property
    def largest(self) -> Budget:
        """The wrapped controller's largest budget."""
        return self.controller.largest

    def init(self) -> SwitchState:
        """Return the state before the plain steps that are timed."""
        known = () if self.plain_s is None else (self.plain_s,)
        return SwitchState(
            self.controller.init(), known, 0 if known else self.num_plain
        )

    def budget(self, state: SwitchState) -> Budget:
        """Return nothing, a trial's budget, or what the wrapped controller says."""
        if state.num_off:
            return OFF
        budget = self.controller.budget(state.inner)
        if state.is_trusted:
            return budget
        return replace(budget, max_depth=min(budget.max_depth, self.trial_depth))

    def observe(self, state: SwitchState, record: StepRecord) -> SwitchState:
        """Return the state after a step."""
        speculated = record.max_depth > 0 and record.max_nodes > 0
        if not speculated:
            state = replace(state, plain_s=with_seconds(state.plain_s, record.step_s))
        if state.num_off:
            return replace(state, num_off=state.num_off - 1)
        inner = self.controller.observe(state.inner, record)
        state = replace(state, inner=inner)
        return self._judged(state, record) if speculated else state

    def _judged(self, state: SwitchState, record: StepRecord) -> SwitchState:
        """Return the state after a step in which speculation was on."""
        plain_s = typical_seconds(state.plain_s)
        is_believed = bool(with_seconds((), record.step_s))
        catches_up = state.num_tried == 0 and record.num_unread > 1
        state = replace(state, num_tried=state.num_tried + 1)
        if plain_s is None or not is_believed or catches_up:
            return state
        limit = self.patience * (4 if state.is_trusted else 1)
        lost = record.step_s / plain_s - record.num_committed
        loss = state.loss + min(lost, ONE_STEP * limit)
        if loss >= limit:
            return self._turned_off(state)
        if state.is_trusted or loss <= -CREDIT:
            return replace(state, loss=max(loss, 0.0), is_trusted=True, num_failed=0)
        return replace(state, loss=loss)

    def _turned_off(self, state: SwitchState) -> SwitchState:
        """Return the state of a draft that lost too much."""
        doublings = min(state.num_failed, MAX_DOUBLINGS)
        num_off = math.ceil(self.patience / self.max_loss) * 2**doublings
        return SwitchState(
            inner=state.inner,
            plain_s=state.plain_s,
            num_off=min(num_off, self.max_off),
            num_failed=state.num_failed + 1,
        )


def _require_between(name: str, value: object, most: float) -> None:
    """Refuse what is no number above 0 and below ``most``."""
    require_number(f"controller.{name}", value)
    assert isinstance(value, int | float)
    if not 0 < value < most:
        raise TreespecError(f"controller.{name} must be > 0 and < {most}, got {value}")
