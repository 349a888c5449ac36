"""What a planner remembers of a request, and when it lets a draft model run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from treespec.belief import Belief
from treespec.policies.base import Situation
from treespec.policies.lookahead import (
    OpenNode,
    Option,
    Prices,
    Prospects,
    best_option,
)
from treespec.types import StepRecord

RECENT = 0.97
"""What is left of earlier tokens and seconds after a step: some thirty steps count."""
PLAIN_STEPS = 2.0
"""Steps without speculation that the rate begins with."""
PROBED = 0.015
"""Share of the time without draft forwards that may go into trying one again."""
LONGEST_PATIENCE = 8
DEEPEST_LOOK = 16


class Opening(StrEnum):
    """Whether a draft model may run for the children of the root, and why."""

    FREE = "there is no draft model"
    PAYS = "a forward pays"
    INVESTS = "reading the unread tokens pays in the long run"
    PROBES = "to try it again"
    UNREAD = "reading the unread tokens would not pay"
    TOO_SLOW = "a forward would not pay"

    @property
    def may_forward(self) -> bool:
        """Whether it may run."""
        return self not in (Opening.UNREAD, Opening.TOO_SLOW)


@dataclass(frozen=True, slots=True)
class PlanState:
    """What a planner remembers of a request: numbers, a fold over its records.

    Attributes:
        belief: How what the drafter says relates to what is accepted.
        tokens: Committed tokens, earlier steps counted less and less.
        seconds: Predicted seconds of the same steps.
        credit_s: Seconds that trying the draft model again may cost.
        patience: Factor on what has to be saved up for that.
        has_model: Whether a draft model has ever run.
    """

    belief: Belief = field(default_factory=Belief)
    tokens: float = 0.0
    seconds: float = 0.0
    credit_s: float = 0.0
    patience: int = 1
    has_model: bool = False

    def observe(self, record: StepRecord, predicted_s: float) -> PlanState:
        """Return the state after a step.

        Args:
            record: The step.
            predicted_s: Seconds that it should have taken by the measured costs.
        """
        state = replace(self, belief=self.belief.observe(record))
        if record.num_draft_forwards or not self.has_model or not record.num_accepted:
            state = replace(
                state,
                tokens=RECENT * self.tokens + record.num_committed,
                seconds=RECENT * self.seconds + predicted_s,
            )
        if not record.num_draft_forwards:
            saved = self.credit_s + PROBED * predicted_s
            return replace(state, credit_s=saved)
        if any(not self.belief.is_free(s) for s in record.accepted_sources):
            return replace(state, patience=1, has_model=True)
        patience = self.patience
        if self.credit_s > 0:  # It was tried again, and in vain.
            patience = min(2 * patience, LONGEST_PATIENCE)
        return replace(state, credit_s=0.0, patience=patience, has_model=True)

    def rate(self, plain_s: float) -> float:
        """Return the tokens a second that a token's seconds are weighed by.

        Those of the recent steps, and never less than without speculation: the text is
        given, so a token that is accepted now saves what it would cost in the steps
        that come, and those are likest to the latest. With a draft model, steps that
        were copied do not count: where it is asked the text is not being copied, and
        while copying nobody asks it.

        Args:
            plain_s: Seconds of a step without speculation.
        """
        tokens = self.tokens + PLAIN_STEPS
        seconds = self.seconds + PLAIN_STEPS * plain_s
        return max(tokens / seconds, 1 / plain_s)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A situation with its prices.

    Attributes:
        situation: Where the request stands.
        state: What is remembered of it.
        prices: What rows cost it.
    """

    situation: Situation
    state: PlanState
    prices: Prices

    @property
    def has_model(self) -> bool:
        """Whether an answer may take a forward."""
        situation = self.situation
        runs = situation.runs_model or situation.num_unread > 0
        return runs or self.state.has_model

    def source_name(self, source: int) -> str:
        """Return the name of a source."""
        names = self.situation.source_names
        return names[source] if source < len(names) else f"source {source}"

    def is_free(self, source: int) -> bool:
        """Return whether a source answers without a forward."""
        if not self.has_model:
            return True
        return self.state.belief.is_free(self.source_name(source))

    @property
    def has_free(self) -> bool:
        """Whether some source answers without a forward."""
        sources = range(len(self.situation.source_names))
        return any(self.is_free(source) for source in sources)

    def prospects(self, max_forwards: int, max_width: int) -> Prospects:
        """Return what is guessed of a model's answers."""
        flow = self.state.belief.flow
        return Prospects(flow.deep.value, flow.second.value, max_forwards, max_width)

    def opening(self, max_depth: int, max_nodes: int) -> Opening:
        """Return whether a draft model may run for the children of the root."""
        if not self.has_model:
            return Opening.FREE
        unread = max(self.situation.num_unread, 1)
        if self._root_option(unread, max_depth, max_nodes).gain > 0:
            return Opening.PAYS
        usual = self._root_option(min(unread, 2), max_depth, max_nodes)
        if usual.gain > 0 and usual.gain * self._steps(usual) > self._reading(unread):
            return Opening.INVESTS
        prices = self.prices
        probe_s = prices.draft_s(unread) + prices.target_s(1) - prices.target_s(0)
        if self.state.credit_s >= self.state.patience * probe_s:
            return Opening.PROBES
        return Opening.UNREAD if usual.gain > 0 else Opening.TOO_SLOW

    def _root_option(self, unread: int, max_depth: int, max_nodes: int) -> Option:
        """Return the best plan that begins with a forward over unread tokens."""
        prices, flow = self.prices, self.state.belief.flow
        return best_option(
            (),
            [OpenNode(1.0, flow.root.value)],
            prices.target(min(max_nodes, 2 * DEEPEST_LOOK)),
            lambda width, is_next: prices.draft(unread if is_next else width),
            self.prospects(min(max_depth, DEEPEST_LOOK), 1),
        )

    def _steps(self, option: Option) -> float:
        """Return the steps to come that a draft model would be of use in."""
        steps = self.situation.remaining / (1 + option.accepted)
        return steps * (1 - self.state.belief.flow.led.value)

    def _reading(self, unread: int) -> float:
        """Return the price of reading what is unread, once."""
        return self.prices.draft(unread) - self.prices.draft(min(unread, 2))
