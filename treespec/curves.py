"""Chances of acceptance against the probability that a drafter gives a node.

One curve per source and rank: a prior that looks like what most drafters do, and counts
of what was accepted, which soon outweigh it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

PROBS = (0.003, 0.01, 0.03, 0.08, 0.18, 0.33, 0.5, 0.67, 0.82, 0.92, 0.97, 0.99, 0.997)
"""Probabilities at which chances are counted; between them they are interpolated."""
KNOTS = tuple(math.log(prob / (1 - prob)) for prob in PROBS)
RANKS = 3
"""Ranks that are told apart: 0, 1, and all others."""
STRENGTH = 3.0
"""Nodes that a prior counts as much as, at every knot."""
UNSEEN = 0.5
"""Weight of a knot where no node was seen against its neighbours."""
POOLED = 20.0
"""Nodes that what earlier requests taught counts as much as, at most."""
MEMORY = 0.98
"""What is left of a knot's counts after one more node there."""

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
    "token_recycling": Prior(0.6, -0.9, is_free=True),
}
"""Priors of sources whose children are ranked by probability."""
DRAWN: dict[str, Prior] = {
    "draft_model": Prior(0.5, 1.0, (0.0, -1.2, -1.6)),
    # A draw is from what a lookup names, as if there were nothing else: that it was
    # sure to be drawn says little.
    "prompt_lookup": Prior(0.2, -0.4, (0.0, -0.6, -0.8), is_free=True),
    "token_recycling": Prior(0.15, -0.8, (0.0, -0.8, -1.1), is_free=True),
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


_NONE: Row = (0.0,) * len(KNOTS)


def _curve(prior: Row, strength: Row, accepted: Row, seen: Row) -> Curve:
    weights = [weight + count for weight, count in zip(strength, seen, strict=True)]
    means = [
        (weight * mean + taken) / total
        for weight, mean, taken, total in zip(
            strength, prior, accepted, weights, strict=True
        )
    ]
    # Where nothing was seen, the knots beside it have the say.
    evidence = [weight - STRENGTH + UNSEEN for weight in weights]
    return Curve(prior, strength, accepted, seen, _rising(means, evidence))


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
def new_curve(source: str, rank: int, drawn: bool) -> Curve:
    """Return the curve of a source of which nothing is known."""
    prior = prior_of(source, drawn)
    chances = tuple(prior.chance(knot, rank) for knot in KNOTS)
    return _curve(chances, (STRENGTH,) * len(KNOTS), _NONE, _NONE)


def prior_of(source: str, drawn: bool) -> Prior:
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


def logit_of(prob: float) -> float:
    """Return the logit, within the knots; what is no probability counts as small."""
    if not prob > PROBS[0]:  # NaN as well
        return KNOTS[0]
    return KNOTS[-1] if prob >= PROBS[-1] else math.log(prob / (1 - prob))


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
