"""Will speculation pay on these texts? A prediction, made without decoding anything.

The texts are taken as what the target would write. Then prompt lookup can be followed
step by step, and a draft model by how often it agrees; costs turn both into seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treespec.agreement import Agreement
from treespec.closed_form import break_even_acceptance
from treespec.costs import Costs
from treespec.drafters.prompt_lookup import PromptLookup
from treespec.errors import TreespecError
from treespec.stats import Interval, bootstrap_interval
from treespec.walk import (
    Walk,
    Written,
    block_seconds,
    chain_walk,
    lookup_walk,
    pooled_speedup,
)

DEPTHS = (1, 2, 3, 5, 8)
"""Lengths of chains that are tried."""
LOOKUP, DRAFT_MODEL = "prompt lookup", "draft model"
"""Where drafts come from."""
LEAST_TEXTS = 5
"""Fewer texts are cut into blocks, so that there is something to resample."""
BLOCK = 32
"""Tokens of a block."""
BOOTSTRAP_SEED = 0
_TWO_SIDED = 1.96


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one way to draft would bring.

    Attributes:
        source: ``LOOKUP`` or ``DRAFT_MODEL``.
        depth: Tokens of a chain.
        accepted_per_step: Accepted tokens per step.
        speedup: Seconds of plain decoding over seconds with drafts.
        interval: Its 95% interval: over texts (blocks of them if they are few), and by
            the error of the costs. Not what the texts themselves are wrong about.
    """

    source: str
    depth: int
    accepted_per_step: float
    speedup: float
    interval: Interval | None

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.source}, {self.depth}"


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Everything that is predicted of some texts.

    Attributes:
        predictions: Every way to draft that was tried.
        break_even: Depth of a draft model's chain -> acceptance from which on it pays.
    """

    predictions: tuple[Prediction, ...]
    break_even: Mapping[int, float | None]

    @property
    def best(self) -> Prediction:
        """The fastest way to draft."""
        return max(self.predictions, key=lambda prediction: prediction.speedup)

    @property
    def verdict(self) -> str:
        """Return in a line whether speculation pays, by the best way to draft."""
        tokens = "token" if self.best.depth == 1 else "tokens"
        return f"{verdict(self.best)}, with {self.best.name} {tokens}"


def given_costs(draft_ratio: float, row_ratio: float) -> Costs:
    """Return costs in units of a plain forward of the target, as the closed form has.

    Args:
        draft_ratio: A draft forward over a plain one, D / T.
        row_ratio: What each further row of a target forward adds, over a plain one.

    Raises:
        TreespecError: A ratio is out of bounds.
    """
    if not 0 < draft_ratio < math.inf:
        raise TreespecError(
            f"draft_ratio must be a finite number > 0, got {draft_ratio}"
        )
    if not 0 <= row_ratio < math.inf:
        raise TreespecError(f"row_ratio must be a finite number >= 0, got {row_ratio}")
    num_rows = 1 + max(DEPTHS)
    target_s = {1: 1.0, num_rows: 1.0 + (num_rows - 1) * row_ratio}
    return Costs.through(target_s, {1: draft_ratio})


def judge(
    texts: Sequence[Written],
    costs: Costs,
    agreements: Sequence[Agreement] | None = None,
    lookup: PromptLookup | None = None,
    sources: Sequence[str] | None = None,
) -> Feasibility:
    """Return what speculation would bring on texts that the target writes.

    Args:
        texts: The texts.
        costs: What forwards cost.
        agreements: How the draft model follows the target on each; ``None`` without
            one.
        lookup: The lookup; ``None``: that of ``drafter=prompt_lookup``.
        sources: What each text is a piece of; ``None`` if each stands for itself.

    Raises:
        TreespecError: No text has a second written token.
    """
    if not any(written.num_decoded for written in texts):
        raise TreespecError("the texts have no token to decode; give longer ones")
    found = []
    for depth in DEPTHS:
        walks = [lookup_walk(w, lookup or PromptLookup(), depth) for w in texts]
        found.append(_prediction(LOOKUP, depth, walks, costs, sources))
    for depth in DEPTHS if agreements is not None else ():
        assert agreements is not None
        pairs = zip(texts, agreements, strict=True)
        walks = [chain_walk(w, read.acceptance, depth) for w, read in pairs]
        found.append(_prediction(DRAFT_MODEL, depth, walks, costs, sources))
    lengths = [len(written.tokens) for written in texts]
    length = int(np.median(lengths))
    break_even = {d: break_even_acceptance(costs, d, length) for d in DEPTHS}
    return Feasibility(tuple(found), break_even)


def predicted_speedup(
    walks: Sequence[Walk], costs: Costs, sources: Sequence[str] | None = None
) -> tuple[float, Interval | None]:
    """Return the speed-up over all walks, and its interval.

    Args:
        walks: The steps along each text.
        costs: What forwards cost.
        sources: What each text is a piece of: pieces of one are resampled together,
            as long as there are enough sources. ``None`` if each stands for itself.
    """
    names = sources or [str(place) for place in range(len(walks))]
    blocks = [block_seconds(costs, walk, BLOCK) for walk in walks]
    rows = np.array([row for rows in blocks for row in rows])
    if len(set(names)) >= LEAST_TEXTS:
        sums = {name: np.zeros(2) for name in names}
        for name, of_text in zip(names, blocks, strict=True):
            sums[name] += np.sum(of_text or [[0.0, 0.0]], axis=0)
        rows = np.array(list(sums.values()))
    rows = rows[rows[:, 0] > 0]
    speedup = float(pooled_speedup(rows.sum(axis=0)))
    interval = None
    if len(rows) >= LEAST_TEXTS:
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        interval = bootstrap_interval(rows, pooled_speedup, rng)
    runs_model = any(walk.runs_model for walk in walks)
    error = math.hypot(
        costs.target_curve.error, costs.draft_curve.error if runs_model else 0.0
    )
    return speedup, None if interval is None else _widened(interval, speedup, error)


def verdict(prediction: Prediction) -> str:
    """Return in a few words whether it pays."""
    speedup, interval = prediction.speedup, prediction.interval
    if interval is None:
        word = "may pay" if speedup > 1 else "does not pay"
        return f"{word}: about {speedup:.2f}x (too little text for an interval)"
    told = f"about {speedup:.2f}x ({interval.low:.2f}-{interval.high:.2f})"
    if interval.low > 1:
        return f"pays: {told}"
    if interval.high < 1 or speedup <= 1:
        return f"does not pay: {told}"
    return f"may pay: {told}, an experiment must tell"


def _prediction(
    source: str,
    depth: int,
    walks: Sequence[Walk],
    costs: Costs,
    sources: Sequence[str] | None,
) -> Prediction:
    speedup, interval = predicted_speedup(walks, costs, sources)
    num_steps = sum(walk.num_steps for walk in walks)
    num_accepted = sum(walk.num_accepted for walk in walks)
    return Prediction(source, depth, num_accepted / num_steps, speedup, interval)


def _widened(interval: Interval, estimate: float, error: float) -> Interval:
    """Return the interval with an independent relative error of the estimate added."""
    below = math.hypot(math.log(estimate / interval.low), _TWO_SIDED * error)
    above = math.hypot(math.log(interval.high / estimate), _TWO_SIDED * error)
    return Interval(estimate * math.exp(-below), estimate * math.exp(above))
