"""Steps that a controller is told of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from treespec.types import Budget, StepRecord

STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Event:
    """One step, as far as it does not follow from its budget.

    Attributes:
        accepts: Whether the whole path was accepted, or nothing of it.
        drafts: Whether the drafter had any candidate.
        seconds: Seconds of the whole step.
        cut: Whether the text ended in it.
        limited: Whether the remaining length allowed less than the budget.
    """

    accepts: bool = True
    drafts: bool = True
    seconds: float = STEP_S
    cut: bool = False
    limited: bool = False

    def record(self, step: int, budget: Budget) -> StepRecord:
        """Return the record of a step that spent all of its budget."""
        if self.limited:
            budget = replace(budget, max_depth=max(0, budget.max_depth - 1))
        layers = tuple(_layers(budget)) if self.drafts else ()
        num_accepted = len(layers) if self.accepts else 0
        whole = self.accepts or not layers
        num_judged = num_accepted if self.accepts else min(1, len(layers))
        return StepRecord(
            step=step,
            num_candidates=sum(layers),
            num_nodes=sum(layers),
            depth=len(layers),
            width=max(layers, default=0),
            nodes_by_depth=layers,
            num_accepted=num_accepted,
            num_committed=num_accepted + (0 if self.cut and num_accepted else 1),
            accepted_ranks=(0,) * num_accepted,
            accepted_sources=("draft_model",) * num_accepted,
            next_kind=None if self.cut else "bonus" if whole else "recovered",
            num_draft_forwards=len(layers),
            draft_s=0.3 * self.seconds,
            plan_s=0.0 * self.seconds,
            verify_s=0.6 * self.seconds,
            accept_s=0.05 * self.seconds,
            commit_s=0.05 * self.seconds,
            step_s=self.seconds,
            max_depth=budget.max_depth,
            max_width=budget.max_width,
            max_nodes=budget.max_nodes,
            budget_by="limit" if self.limited else "controller",
            judged_sources=("draft_model",) * num_judged,
            judged_ranks=(0,) * num_judged,
            judged_depths=tuple(range(1, num_judged + 1)),
            judged_probs=(0.5,) * num_judged,
            judged_accepted=(self.accepts,) * num_judged,
            num_unread=0,
        )


def _layers(budget: Budget) -> Iterator[int]:
    """Yield the sizes of the layers of a tree that spends the budget."""
    left = budget.max_nodes
    for _ in range(budget.max_depth):
        if left == 0:
            return
        yield min(budget.max_width, left)
        left -= min(budget.max_width, left)


REJECTS = Event(accepts=False)
STORIES: Mapping[str, Sequence[Event]] = {
    "50 steps that accept all, then 50 that reject all": [Event()] * 50
    + [REJECTS] * 50,
    "50 steps that reject all, then 50 that accept all": [REJECTS] * 50
    + [Event()] * 50,
    "steps that took no time": [Event(seconds=0.0), replace(REJECTS, seconds=0.0)] * 5
    + [Event(), REJECTS] * 5,
    "steps whose seconds are NaN": [Event(seconds=float("nan"))] * 3
    + [Event(), REJECTS] * 5,
    "steps that took very long": [Event(seconds=1e9), Event(), REJECTS] * 3,
    "steps without a drafted node": [Event(drafts=False)] * 5 + [Event(), REJECTS] * 3,
    "steps that the remaining length limited": [Event(limited=True), REJECTS] * 5,
    "a step that the text's end cut": [Event(), REJECTS, Event(cut=True)],
}
