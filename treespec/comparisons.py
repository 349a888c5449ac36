"""Which runs of a sweep differ, when so many are compared that some differ by luck.

Every run's speed-ups are over its own baseline, which it did in turns with its own
strategy, so a prompt's numbers compare between runs of different times, as long as all
have the same baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from treespec.metrics import MIN_PROMPTS_FOR_INTERVAL
from treespec.stats import (
    Interval,
    detectable_ratio,
    geometric_mean,
    geometric_mean_interval,
    holm,
    sign_flip_p_value,
)

Speedups = Mapping[str, Mapping[str, float]]
"""Run -> prompt's id -> its speed-up."""
SEED = 0
_LEAST_RESAMPLES, _RESAMPLES_PER_PAIR = 9999, 400


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the prompts that both decoded.

    Attributes:
        run: The one.
        other: The one it is compared with.
        num_prompts: Prompts that both decoded.
        ratio: Geometric mean of its speed-ups over the other's.
        interval: The ratio's own 95% BCa interval; ``None`` below five prompts.
        p_value: Of a sign-flip test of the logarithms; ``None`` for fewer than two.
        adjusted_p_value: The same, adjusted for all pairs of the sweep (Holm).
        detectable: The least relative difference that these prompts would show most of
            the time.
    """

    run: str
    other: str
    num_prompts: int
    ratio: float | None
    interval: Interval | None
    p_value: float | None
    adjusted_p_value: float | None
    detectable: float | None


def compare_all(speedups: Speedups) -> list[Comparison]:
    """Return every pair of runs, p-values adjusted for the number of pairs.

    Args:
        speedups: Of every run, per prompt; those in one of two runs only do not count.
    """
    pairs = list(combinations(speedups, 2))
    # So that a pair can still differ once its p-value is multiplied by their number.
    num_resamples = max(_LEAST_RESAMPLES, _RESAMPLES_PER_PAIR * len(pairs))
    found = [_compare(speedups, *pair, num_resamples) for pair in pairs]
    tested = [n for n, pair in enumerate(found) if pair.p_value is not None]
    adjusted = holm([found[n].p_value or 0.0 for n in tested])
    for n, p_value in zip(tested, adjusted, strict=True):
        found[n] = replace(found[n], adjusted_p_value=p_value)
    return found


def _compare(
    speedups: Speedups, run: str, other: str, num_resamples: int
) -> Comparison:
    shared = [prompt for prompt in speedups[run] if prompt in speedups[other]]
    ratios = [speedups[run][prompt] / speedups[other][prompt] for prompt in shared]
    logs = np.log(ratios).tolist()
    rng = np.random.default_rng(SEED)
    interval = None
    if len(ratios) >= MIN_PROMPTS_FOR_INTERVAL:
        interval = geometric_mean_interval(ratios, np.random.default_rng(SEED))
    return Comparison(
        run=run,
        other=other,
        num_prompts=len(shared),
        ratio=geometric_mean(ratios),
        interval=interval,
        p_value=sign_flip_p_value(logs, rng, num_resamples),
        adjusted_p_value=None,
        detectable=detectable_ratio(ratios),
    )
