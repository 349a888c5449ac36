"""How far measurements of the same thing lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treespec.outcome import PromptOutcome


def repeat_noise(outcomes: Sequence[PromptOutcome]) -> dict[str, Any]:
    """Return how far measurements of the same prompt lie apart.

    - ``num_repeats``: measurements per prompt.
    - ``speedup_spread``: standard deviation of one measurement of a prompt's speed-up,
      relative, pooled over prompts; what the machine adds to what the texts say.
      ``None`` without repeats.
    - ``num_differing``: prompts whose texts were not the same every time.
    """
    repeated = [outcome.repeats for outcome in outcomes if outcome.repeats]
    variances = [
        np.var(np.log([r.baseline_s / r.speculative_s for r in repeats]), ddof=1)
        for repeats in repeated
        if all(r.baseline_s > 0 and r.speculative_s > 0 for r in repeats)
    ]
    return {
        "num_repeats": max(map(len, repeated), default=1),
        "speedup_spread": float(np.mean(variances) ** 0.5) if variances else None,
        "num_differing": sum(
            not all(repeat.agrees for repeat in repeats) for repeats in repeated
        ),
    }
