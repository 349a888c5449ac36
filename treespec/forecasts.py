"""What a policy expected of its trees, against what came.

Steps whose policy said nothing (most policies never do, and a step whose budget is zero
is not asked) count nowhere here; without any, the numbers are ``None``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean, median
from typing import Any

from treespec.types import StepRecord

OFF_REASON = "off"
"""First word of the reasons for which a policy does not speculate."""


def forecast_quality(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Return how forecasts compare with what came.

    Accepted tokens are compared over the steps that were not cut by a stop or a length
    limit, since what is cut counts nowhere:

    - ``num_forecasts``: steps with an expected number of accepted tokens.
    - ``expected_accepted_per_step``, ``forecast_accepted_per_step``: mean of what was
      expected, and of what was accepted in the same steps.
    - ``accepted_by_expected``: the same for the steps that expected at least ``low``
      and less than ``low + 1`` accepted tokens, and their number.

    Seconds are compared over the steps with a positive expected time:

    - ``step_time_ratio``: seconds that the steps took over seconds expected, totals.
    - ``median_step_time_ratio``: median over steps of the same, which no outlier moves.
    """
    pairs = sorted(_accepted_pairs(steps))
    times = [
        (step.step_s, step.expected_s)
        for step in steps
        if step.expected_s is not None and 0 < step.expected_s < math.inf
    ]
    total_s = sum(planned for _, planned in times)
    return {
        "num_forecasts": len(pairs),
        "expected_accepted_per_step": _mean([expected for expected, _ in pairs]),
        "forecast_accepted_per_step": _mean([accepted for _, accepted in pairs]),
        "accepted_by_expected": [
            _bin(low, list(group))
            for low, group in groupby(pairs, key=lambda pair: math.floor(pair[0]))
        ],
        "step_time_ratio": sum(took for took, _ in times) / total_s if times else None,
        "median_step_time_ratio": median(took / planned for took, planned in times)
        if times
        else None,
    }


def reason_share(steps: Sequence[StepRecord]) -> dict[str, float] | None:
    """Return the share of all steps that had each reason, the most frequent first.

    Steps without a reason are counted among all, so the sum may be below 1. ``None``
    if no step has a reason.
    """
    counts = Counter(step.reason for step in steps if step.reason is not None)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {reason: count / len(steps) for reason, count in ordered} or None


def off_share(reasons: Mapping[str, float]) -> dict[str, float]:
    """Return why a policy did not speculate, with the share of steps, from shares.

    The reasons ``off`` and ``off: WHY``, without the first word.
    """
    parts = [(reason.partition(":"), share) for reason, share in reasons.items()]
    return {why.strip(): share for (word, _, why), share in parts if word == OFF_REASON}


def _accepted_pairs(steps: Sequence[StepRecord]) -> list[tuple[float, int]]:
    """Return expected and accepted tokens of the steps that can be compared."""
    return [
        (step.expected_accepted, step.num_accepted)
        for step in steps
        if step.expected_accepted is not None
        and math.isfinite(step.expected_accepted)
        and step.next_kind is not None
    ]


def _bin(low: int, pairs: Sequence[tuple[float, int]]) -> dict[str, Any]:
    return {
        "low": low,
        "num_steps": len(pairs),
        "expected_accepted": _mean([expected for expected, _ in pairs]),
        "num_accepted": _mean([accepted for _, accepted in pairs]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
