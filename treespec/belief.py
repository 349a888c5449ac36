"""How probably the target accepts a node of which a drafter says this and that.

Drafters speak in probabilities that are not those of acceptance: a small model is too
sure, a lookup's counts are rough. A ``Belief`` maps what one says of a node to the
chance that the target accepts it, given that its parent was reached. It is a fold over
``StepRecord.judged_*``: plain numbers, so the records of a request give it again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from treespec.types import StepRecord

PROBS = (0.003, 0.01, 0.03, 0.08, 0.18, 0.33, 0.5, 0.67, 0.82, 0.92, 0.97, 0.99, 0.997)
"""Probabilities at which chances are counted; between them they are interpolated."""
KNOTS = tuple(math.log(prob / (1 - prob)) for prob in PROBS)
RANKS = 3
"""Ranks that are told apart: 0, 1, and all others."""
STRENGTH = 4.0
"""Nodes that a prior counts as much as, at every knot."""
POOLED = 40.0
"""Nodes that what earlier requests taught counts as much as, at most."""
MEMORY = 0.98
"""What is left of a knot's counts after one more node there."""
ROOT_MEMORY = 0.93
"""The same for the root: what a text is like changes, and a bad draft costs time."""
UNSURE, SURE = 0.5, 0.9
"""Chances of a node that part the nodes whose next token is asked about."""
LARGEST = 0.999

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Prior:
    """What is expected of a source before anything was seen of it.

    Attributes:
        slope, offset: A node that has probability p given its parent is accepted with
            the chance whose logit is ``slope * logit(p) + offset``.
        by_rank: Added to the offset for ranks 0, 1, and all others.
        is_free: Whether it answers without a forward of a model.
    """

    slope: float
    offset: float
    by_rank: tuple[float, float, float] = (0.0, 0.0, 0.0)
    is_free: bool = False

    def chance(self, logit: float, rank: int) -> float:
        """Return the expected chance."""
        return _sigmoid(self.slope * logit + self.offset + self.by_rank[rank])


LIKELIEST: dict[str, Prior] = {
    "draft_model": Prior(0.9, 0.0),
    "early_exit": Prior(0.8, 0.0),
    "prompt_lookup": Prior(0.8, -0.3, is_free=True),
    "token_recycling": Prior(0.6, -0.6, is_free=True),
}
"""Priors of sources whose children are ranked by probability."""
DRAWN: dict[str, Prior] = {
    "draft_model": Prior(0.5, 1.0, (0.0, -1.2, -1.6)),
    "prompt_lookup": Prior(0.8, -0.1, (0.0, -0.6, -0.8), is_free=True),
    "token_recycling": Prior(0.6, 0.0, (0.0, -0.8, -1.1), is_free=True),
}
"""Of those whose children are drawn: an unlikely child is often accepted."""
UNKNOWN = {False: Prior(0.8, -0.2), True: Prior(0.5, 0.5, (0.0, -1.0, -1.4))}
"""Of any other source."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Chances against probability, for one source and one rank.

    Attributes:
        prior: Expected chances at the knots.
        strength: Nodes that they count as much as.
        accepted, seen: Accepted nodes and all that were judged, forgotten slowly.
        chances: What to believe now: never falls.
    """

    prior: Row
    strength: Row
    accepted: Row
    seen: Row
    chances: Row

    def chance(self, logit: float) -> float:
        """Return the chance between the knots."""
        low, share = _place(logit)
        chances = self.chances
        return chances[low] + share * (chances[low + 1] - chances[low])

    def observe(self, logit: float, accepted: bool) -> Curve:
        """Return the curve after one more judged node."""
        low, share = _place(logit)
        seen, taken = list(self.seen), list(self.accepted)
        for knot, weight in ((low, 1 - share), (low + 1, share)):
            kept = 1 - weight * (1 - MEMORY)
            seen[knot] = kept * seen[knot] + weight
            taken[knot] = kept * taken[knot] + weight * accepted
        return _curve(self.prior, self.strength, tuple(taken), tuple(seen))

    def as_prior(self) -> Curve:
        """Return a curve that expects what this one has learned."""
        strength = tuple(
            min(POOLED, weight + count)
            for weight, count in zip(self.strength, self.seen, strict=True)
        )
        return _curve(self.chances, strength, _NONE, _NONE)


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
        return self._curve(source, min(rank, RANKS - 1)).chance(_logit(prob))

    def is_free(self, source: str) -> bool:
        """Return whether a source is known to answer without a forward."""
        return source in self.free or _prior(source, self.drawn).is_free

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
            curve = curves.get(key) or _new_curve(*key, self.drawn)
            curves[key] = curve.observe(_logit(node.prob), node.accepted)
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

    def predictions(self, record: StepRecord) -> list[tuple[float, bool]]:
        """Return chance and outcome of every node that a step judged."""
        return [(node.chance, node.accepted) for node in self._judged(record)]

    def _curve(self, source: str, rank: int) -> Curve:
        for key, curve in self.curves:
            if key == (source, rank):
                return curve
        return _new_curve(source, rank, self.drawn)

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
        honest: both count half.
        """
        flow, parents = self.flow, {0: 1.0}
        for node in judged:
            value = (node.chance + node.accepted) / 2
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
    trees (never another text) after other prompts.

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


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Nodes whose chance was between two bounds.

    Attributes:
        low, high: The bounds.
        num_nodes: Nodes in it.
        expected: Their mean chance.
        accepted: Share of them that was accepted.
    """

    low: float
    high: float
    num_nodes: int
    expected: float
    accepted: float


def predictions(
    records: Iterable[StepRecord], belief: Belief
) -> list[tuple[float, bool]]:
    """Return chance and outcome of every judged node of a request's records.

    Every chance is what was believed before the node was judged.
    """
    found: list[tuple[float, bool]] = []
    for record in records:
        found += belief.predictions(record)
        belief = belief.observe(record)
    return found


def reliability(
    pairs: Sequence[tuple[float, bool]], num_bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """Return the reliability table of chances and outcomes, without empty bins."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(num_bins)]
    for chance, accepted in pairs:
        bins[min(int(chance * num_bins), num_bins - 1)].append((chance, accepted))
    return tuple(
        ReliabilityBin(
            low=place / num_bins,
            high=(place + 1) / num_bins,
            num_nodes=len(within),
            expected=sum(chance for chance, _ in within) / len(within),
            accepted=sum(accepted for _, accepted in within) / len(within),
        )
        for place, within in enumerate(bins)
        if within
    )


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the expected calibration error: the mean gap, weighted by nodes."""
    total = sum(one.num_nodes for one in bins)
    gaps = sum(one.num_nodes * abs(one.expected - one.accepted) for one in bins)
    return gaps / total if total else 0.0


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


_NONE: Row = (0.0,) * len(KNOTS)


def _curve(prior: Row, strength: Row, accepted: Row, seen: Row) -> Curve:
    weights = [weight + count for weight, count in zip(strength, seen, strict=True)]
    means = [
        (weight * mean + taken) / total
        for weight, mean, taken, total in zip(
            strength, prior, accepted, weights, strict=True
        )
    ]
    return Curve(prior, strength, accepted, seen, _rising(means, weights))


def _rising(means: Sequence[float], weights: Sequence[float]) -> Row:
    """Return the closest values that never fall (pooled adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for mean, weight in zip(means, weights, strict=True):
        block = (mean, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            above, heavy, count = blocks.pop()
            total = heavy + block[1]
            mixed = (above * heavy + block[0] * block[1]) / total
            block = (mixed, total, count + block[2])
        blocks.append(block)
    return tuple(mean for mean, _, count in blocks for _ in range(count))


@cache
def _new_curve(source: str, rank: int, drawn: bool) -> Curve:
    prior = _prior(source, drawn)
    chances = tuple(prior.chance(knot, rank) for knot in KNOTS)
    return _curve(chances, (STRENGTH,) * len(KNOTS), _NONE, _NONE)


def _prior(source: str, drawn: bool) -> Prior:
    """Return the prior of a source; ``draft_model_2`` is a draft model as well."""
    priors = DRAWN if drawn else LIKELIEST
    stem, _, number = source.rpartition("_")
    name = stem if number.isdigit() else source
    return priors.get(name, UNKNOWN[drawn])


def _place(logit: float) -> tuple[int, float]:
    """Return the knot below, and the share of the way to the next one."""
    low = min(max(bisect_right(KNOTS, logit) - 1, 0), len(KNOTS) - 2)
    share = (logit - KNOTS[low]) / (KNOTS[low + 1] - KNOTS[low])
    return low, min(max(share, 0.0), 1.0)


def _logit(prob: float) -> float:
    if not prob > PROBS[0]:  # NaN as well
        return KNOTS[0]
    return KNOTS[-1] if prob >= PROBS[-1] else math.log(prob / (1 - prob))


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
