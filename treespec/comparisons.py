"""Which runs of a sweep differ, when so many are compared that some differ by luck.

Every run's speed-ups are over its own autoregressive decoding, which it did in turns
with its own strategy, so a prompt's numbers compare between runs of different times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs on the prompts that both decoded.

    Attributes:
        run: The one.
        other: The one it is compared with.
        num_prompts: Prompts that both decoded.
        ratio: Geometric mean of its speed-ups over the other's.
        interval: The ratio's own 95% BCa interval; ``None`` for fewer than two prompts.
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
    found = [_compare(speedups, run, other) for run, other in combinations(speedups, 2)]
    tested = [n for n, pair in enumerate(found) if pair.p_value is not None]
    adjusted = holm([found[n].p_value or 0.0 for n in tested])
    for n, p_value in zip(tested, adjusted, strict=True):
        found[n] = replace(found[n], adjusted_p_value=p_value)
    return found


def against_fastest(speedups: Speedups) -> dict[str, Comparison]:
    """Return of every other run its comparison with the fastest one.

    The fastest has the largest geometric mean. As it is chosen by the same numbers, the
    p-values stay adjusted for all pairs, of which these are some.
    """
    means = {
        run: mean
        for run, of_run in speedups.items()
        if (mean := geometric_mean(list(of_run.values()))) is not None
    }
    if not means:
        return {}
    fastest = max(means, key=means.__getitem__)
    pairs = [p for p in compare_all(speedups) if fastest in (p.run, p.other)]
    turned = [pair if pair.other == fastest else _turned(pair) for pair in pairs]
    return {pair.run: pair for pair in turned}


def _compare(speedups: Speedups, run: str, other: str) -> Comparison:
    shared = [prompt for prompt in speedups[run] if prompt in speedups[other]]
    ratios = [speedups[run][prompt] / speedups[other][prompt] for prompt in shared]
    logs = np.log(ratios).tolist()
    return Comparison(
        run=run,
        other=other,
        num_prompts=len(shared),
        ratio=geometric_mean(ratios),
        interval=geometric_mean_interval(ratios, np.random.default_rng(SEED)),
        p_value=sign_flip_p_value(logs, np.random.default_rng(SEED)),
        adjusted_p_value=None,
        detectable=detectable_ratio(ratios),
    )


def _turned(pair: Comparison) -> Comparison:
    """Return the same comparison from the other's side."""
    interval = pair.interval
    if interval is not None:
        interval = Interval(1 / interval.high, 1 / interval.low)
    return replace(
        pair,
        run=pair.other,
        other=pair.run,
        ratio=None if pair.ratio is None else 1 / pair.ratio,
        interval=interval,
    )
