"""How probably the target accepts a node of which a drafter says this and that.

Drafters speak in probabilities that are not those of acceptance: a small model is too
sure, a lookup's counts are rough. A ``Belief`` maps what one says of a node to the
chance that the target accepts it, given that its parent was reached. It is a fold over
``StepRecord.judged_*``: plain numbers, so the records of a request give it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from treespec.curves import RANKS, Curve, logit_of, new_curve, prior_of
from treespec.types import StepRecord

ROOT_MEMORY = 0.93
"""The same for the root: what a text is like changes, and a bad draft costs time."""
UNSURE, SURE = 0.5, 0.9
"""Chances of a node that part the nodes whose next token is asked about."""
LARGEST = 0.999


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean that forgets slowly and begins with a guess.

    Attributes:
        total: Sum of what was seen.
        weight: How much that counts.
    """

    total: float
    weight: float

    @property
    def value(self) -> float:
        """The mean."""
        return self.total / self.weight

    def observe(self, value: float, memory: float = 0.97) -> Mean:
        """Return the mean after one more."""
        return Mean(memory * self.total + value, memory * self.weight + 1)


def _guess(value: float, weight: float = 2.0) -> Mean:
    return Mean(value * weight, weight)


@dataclass(frozen=True, slots=True)
class Flow:
    """What a draft model's answers are worth before they are known.

    Chances that the best child is accepted, given that its parent was.

    Attributes:
        root: Of the root.
        unsure, medium, sure: Of nodes that had a small, medium, large chance.
        deep: Of any node but the root.
        second: Chance of the second-best child.
        free: Chance of the best child of a source that takes no forward.
        led: Share of the steps in which such a source spoke first.
    """

    root: Mean = field(default_factory=lambda: _guess(0.7))
    unsure: Mean = field(default_factory=lambda: _guess(0.55))
    medium: Mean = field(default_factory=lambda: _guess(0.65))
    sure: Mean = field(default_factory=lambda: _guess(0.8))
    deep: Mean = field(default_factory=lambda: _guess(0.75))
    second: Mean = field(default_factory=lambda: _guess(0.12))
    free: Mean = field(default_factory=lambda: _guess(0.6))
    led: Mean = field(default_factory=lambda: _guess(0.0))

    def below(self, chance: float) -> float:
        """Return the chance of the best child of a node that had this chance."""
        if chance < UNSURE:
            return self.unsure.value
        return self.medium.value if chance < SURE else self.sure.value


@dataclass(frozen=True, slots=True)
class Belief:
    """What the records of a request have taught about its drafter.

    Attributes:
        drawn: Whether children are drawn, not ranked.
        curves: By source and rank.
        flow: What answers are worth that are not known yet.
        free: Sources that have answered without a forward of a model.
    """

    drawn: bool = False
    curves: tuple[tuple[tuple[str, int], Curve], ...] = ()
    flow: Flow = field(default_factory=Flow)
    free: tuple[str, ...] = ()

    def chance(self, source: str, prob: float, rank: int) -> float:
        """Return the chance that a node is accepted if its parent was reached.

        Args:
            source: Name of the drafter's source.
            prob: Probability given its parent, as the drafter has it; what is no
                probability counts as a very small one.
            rank: Draw-order rank among its siblings.
        """
        return self._curve(source, min(rank, RANKS - 1)).chance(logit_of(prob))

    def is_free(self, source: str) -> bool:
        """Return whether a source is known to answer without a forward."""
        return source in self.free or prior_of(source, self.drawn).is_free

    def observe(self, record: StepRecord) -> Belief:
        """Return the belief after a step."""
        free = self.free
        if not record.num_draft_forwards:
            new = {s for s in record.judged_sources if not self.is_free(s)}
            free = (*free, *sorted(new))
        judged = self._judged(record)
        curves = dict(self.curves)
        for node in judged:
            key = (node.source, min(node.rank, RANKS - 1))
            curve = curves.get(key) or new_curve(*key, self.drawn)
            curves[key] = curve.observe(logit_of(node.prob), node.accepted)
        belief = replace(self, curves=tuple(curves.items()), free=free)
        return replace(belief, flow=belief._flow(record, judged))

    def as_prior(self) -> Belief:
        """Return a belief for another request: what was learned, held less firmly."""
        curves = tuple((key, curve.as_prior()) for key, curve in self.curves)
        means = {
            name: _guess(mean.value, min(mean.weight, 6.0))
            for name in Flow.__dataclass_fields__
            if isinstance(mean := getattr(self.flow, name), Mean)
        }
        return replace(self, curves=curves, flow=Flow(**means))

    def _curve(self, source: str, rank: int) -> Curve:
        for key, curve in self.curves:
            if key == (source, rank):
                return curve
        return new_curve(source, rank, self.drawn)

    def _judged(self, record: StepRecord) -> list[_Judged]:
        columns = zip(
            record.judged_sources,
            record.judged_probs,
            record.judged_ranks,
            record.judged_depths,
            record.judged_accepted,
            strict=True,
        )
        return [
            _Judged(source, prob, rank, depth, taken, self.chance(source, prob, rank))
            for source, prob, rank, depth, taken in columns
        ]

    def _flow(self, record: StepRecord, judged: Sequence[_Judged]) -> Flow:
        """Return what the step tells of answers that are not known yet.

        A calibrated chance says more than one outcome, and the outcome keeps it
        honest.
        """
        flow, parents = self.flow, {0: 1.0}
        for node in judged:
            value = (node.chance + 2 * node.accepted) / 3
            if node.accepted:
                parents[node.depth] = node.chance
            if self.is_free(node.source):
                if node.rank == 0:
                    flow = replace(flow, free=flow.free.observe(value))
            elif node.rank == 0:
                flow = _model_answered(flow, node.depth, parents, value)
            elif node.rank == 1:
                flow = replace(flow, second=flow.second.observe(value))
        first = {node.source for node in judged if node.depth == 1}
        led = bool(first) and all(self.is_free(source) for source in first)
        flow = replace(flow, led=flow.led.observe(float(led)))
        return _unseen_answer(flow, record, parents)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A node whose parent was reached."""

    source: str
    prob: float
    rank: int
    depth: int
    accepted: bool
    chance: float


class BeliefMemory:
    """What all requests so far have taught: the prior of the next one.

    It lives as long as its owner keeps it, so with one the same prompt may get other
    trees after other prompts (and, under rules that look at the draft's law, another
    text of the same law).

    Attributes:
        belief: What is believed now; ``None`` before the first record.
    """

    def __init__(self) -> None:
        """Begin without records."""
        self.belief: Belief | None = None

    def start(self, drawn: bool) -> Belief:
        """Return the belief that a new request begins with."""
        if self.belief is None or self.belief.drawn is not drawn:
            return Belief(drawn)
        return self.belief.as_prior()

    def add(self, record: StepRecord, drawn: bool) -> None:
        """Take in a record."""
        if self.belief is None or self.belief.drawn is not drawn:
            self.belief = Belief(drawn)
        self.belief = self.belief.observe(record)


def _model_answered(
    flow: Flow, depth: int, parents: dict[int, float], value: float
) -> Flow:
    """Return the flow after a best child of a draft model was judged."""
    if depth == 1:
        return replace(flow, root=flow.root.observe(value, ROOT_MEMORY))
    flow = replace(flow, deep=flow.deep.observe(value))
    above = parents.get(depth - 1, 1.0)
    if above < UNSURE:
        return replace(flow, unsure=flow.unsure.observe(value))
    if above < SURE:
        return replace(flow, medium=flow.medium.observe(value))
    return replace(flow, sure=flow.sure.observe(value))


def _unseen_answer(flow: Flow, record: StepRecord, parents: dict[int, float]) -> Flow:
    """Return the flow after an answer that was not worth verifying, if there was one.

    A path that was accepted to its leaf, a forward more than its depth, and candidates
    that were left out: what the model said there had a small chance. Not to count it
    would make the model look better than it is.
    """
    depth = max(parents)
    left_out = record.num_candidates > record.num_nodes
    asked = record.num_draft_forwards > record.depth == depth
    if not (left_out and asked and record.next_kind == "bonus"):
        return flow
    return _model_answered(flow, depth + 1, parents, 0.2 if depth else 0.05)
