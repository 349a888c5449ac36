"""Numbers of a study with their intervals: the unit that is resampled is the prompt.

What belongs to one prompt stays together, over all jobs that are compared, so that a
hard prompt counts against all of them alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treespec.outcome import PromptOutcome
from treespec.sinks.reader import Run
from treespec.stats import Floats, bootstrap_interval
from treespec.types import GenerationResult

MIN_UNITS = 5
"""From fewer no interval is made."""
NUM_RESAMPLES = 4000
SEED = 0
_NAN = float("nan")

Statistic = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 95% interval; NaN where there is none."""

    value: float
    low: float = _NAN
    high: float = _NAN

    def __str__(self) -> str:
        """Return it to be read, with its interval."""
        return self.told()

    def told(self, unit: str = "", digits: int = 2) -> str:
        """Return it to be read: ``1.32x (1.20 to 1.45)``."""
        if math.isnan(self.value):
            return "unknown"
        if math.isnan(self.low):
            return f"{self.value:.{digits}f}{unit} (no interval)"
        return (
            f"{self.value:.{digits}f}{unit} "
            f"({self.low:.{digits}f} to {self.high:.{digits}f})"
        )

    def percent(self) -> str:
        """Return a share as a percentage."""
        return Estimate(100 * self.value, 100 * self.low, 100 * self.high).told("%", 0)

    def columns(self, name: str) -> dict[str, Any]:
        """Return it as columns of a table: the number, and its interval to be read."""
        has_interval = not math.isnan(self.low)
        told = f"{self.low:.2f} to {self.high:.2f}" if has_interval else "-"
        return {name: self.value, f"{name}, 95%": told}


UNKNOWN = Estimate(_NAN)


def estimate(rows: Floats, statistic: Statistic) -> Estimate:
    """Return a statistic of column sums over rows of units.

    Args:
        rows: A row per unit.  # [P, C]
        statistic: From sums ``[..., C]`` to values ``[...]``.
    """
    if not len(rows):
        return UNKNOWN
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(rows.sum(axis=0)))
        if len(rows) < MIN_UNITS or not math.isfinite(value):
            return Estimate(value)
        rng = np.random.default_rng(SEED)
        interval = bootstrap_interval(rows, statistic, rng, NUM_RESAMPLES)
    if interval is None:
        return Estimate(value)
    return Estimate(value, interval.low, interval.high)


def speedup(run: Run) -> Estimate:
    """Return plain over speculative seconds per decoded token, totals over prompts."""
    return estimate(np.array([decode_row(o) for o in comparable([run])[0]]), _speedup)


def speedup_over(run: Run, other: Run) -> Estimate:
    """Return the speed-up of a run over that of another, paired over prompts."""
    own, others = comparable([run, other])
    pairs = zip(own, others, strict=True)
    rows = np.array([[*decode_row(a), *decode_row(b)] for a, b in pairs])
    return estimate(
        rows, lambda sums: _speedup(sums[..., :4]) / _speedup(sums[..., 4:])
    )


def tokens_per_step(run: Run) -> Estimate:
    """Return committed tokens per target forward, recovered or bonus token included."""
    rows = [[r.num_committed, r.num_steps] for r in step_rows(run)]
    return estimate(np.array(rows, dtype=float), lambda s: s[..., 0] / s[..., 1])


@dataclass(frozen=True, slots=True)
class StepSums:
    """Sums over a prompt's speculative steps, and what a plain step took it."""

    num_steps: int
    num_committed: int
    num_accepted: int
    num_nodes: int
    step_s: float
    draft_s: float
    plain_s: float


def step_rows(run: Run) -> list[StepSums]:
    """Return a row per prompt that has steps on both sides."""
    return [step_sums(outcome) for outcome in comparable([run])[0]]


def step_sums(outcome: PromptOutcome) -> StepSums:
    """Return the sums of one prompt."""
    steps, plain = outcome.speculative.steps, outcome.baseline.steps
    return StepSums(
        num_steps=len(steps),
        num_committed=sum(step.num_committed for step in steps),
        num_accepted=sum(step.num_accepted for step in steps),
        num_nodes=sum(step.num_nodes for step in steps),
        step_s=sum(step.step_s for step in steps),
        draft_s=sum(step.draft_s for step in steps),
        plain_s=sum(step.step_s for step in plain) / len(plain),
    )


def acceptance(run: Run) -> Estimate:
    """Return accepted drafts per judged first child."""
    rows = [judged_row(outcome) for outcome in run.outcomes]
    return estimate(np.array([row for row in rows if row[1]]).reshape(-1, 2), _ratio)


def acceptance_moved(run: Run, other: Run) -> Estimate:
    """Return the acceptance of the other run less that of a run, paired."""
    own, others = comparable([run, other])
    rows = np.array(
        [[*judged_row(a), *judged_row(b)] for a, b in zip(own, others, strict=True)]
    ).reshape(-1, 4)
    return estimate(rows, lambda s: _ratio(s[..., 2:]) - _ratio(s[..., :2]))


def judged_row(outcome: PromptOutcome) -> list[float]:
    """Return accepted and judged first children of a prompt."""
    judged = [
        accepted
        for step in outcome.speculative.steps
        for rank, accepted in zip(step.judged_ranks, step.judged_accepted, strict=True)
        if rank == 0
    ]
    return [float(sum(judged)), float(len(judged))]


def comparable(runs: Sequence[Run]) -> list[list[PromptOutcome]]:
    """Return the outcomes of each run for the prompts that decoded in all of them."""
    by_id = [{o.id: o for o in run.outcomes if _decoded(o)} for run in runs]
    shared = [o.id for o in runs[0].outcomes if all(o.id in found for found in by_id)]
    return [[found[name] for name in shared] for found in by_id]


def decode_row(outcome: PromptOutcome) -> list[float]:
    """Return seconds and decoded tokens of a prompt, the baseline's first."""
    sides = outcome.baseline, outcome.speculative
    return [number for side in sides for number in (side.decode_s, num_decoded(side))]


def num_decoded(result: GenerationResult) -> float:
    """Return the tokens that steps committed."""
    return float(max(len(result.tokens) - 1, 0))


def verdict(speedup_: Estimate) -> str:
    """Return what an interval says of a speed-up: it pays, it does not, or neither."""
    if speedup_.low > 1:
        return "pays"
    return "does not pay" if speedup_.high < 1 else "is not shown to pay"


def correlation(x: Sequence[float], y: Sequence[float]) -> Estimate:
    """Return Pearson's correlation with its bootstrap interval."""
    columns = np.array([x, y], dtype=float)
    known = columns[:, np.isfinite(columns).all(axis=0)]
    if known.shape[1] < MIN_UNITS or not (known.std(axis=1) > 0).all():
        return UNKNOWN
    a, b = (known - known.mean(axis=1, keepdims=True)) / known.std(
        axis=1, keepdims=True
    )
    ones = np.ones_like(a)
    return estimate(np.stack([ones, a, b, a * a, b * b, a * b], axis=1), _pearson)


def _ratio(sums: Floats) -> Floats:
    result: Floats = sums[..., 0] / sums[..., 1]
    return result


def _pearson(sums: Floats) -> Floats:
    n, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
    spread = np.sqrt(np.maximum((n * aa - a * a) * (n * bb - b * b), 0))
    # A resample of one prompt alone has no spread, and says nothing.
    result: Floats = np.where(spread > 1e-9, (n * ab - a * b) / (spread + 1e-300), 0.0)
    return result


def _speedup(sums: Floats) -> Floats:
    plain_s, num_plain, own_s, num_own = np.moveaxis(sums, -1, 0)
    result: Floats = (plain_s / num_plain) / (own_s / num_own)
    return result


def _decoded(outcome: PromptOutcome) -> bool:
    sides = outcome.baseline, outcome.speculative
    return all(side.steps and side.decode_s > 0 for side in sides)
