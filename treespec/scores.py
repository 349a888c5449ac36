"""From scores of texts to the quality of both sides, and whether they are equivalent.

A measure that the two sides share is no evidence by itself that speculation harms
nothing: with few prompts any two sides look alike. So the difference comes with an
interval, and ``equivalent`` is said only if a difference as large as the margin can be
ruled out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treespec.outcome import Pooling, PromptOutcome, Score
from treespec.stats import Floats, equivalence

_LEAST_PROMPTS = 5
_ORDERS = 4


def quality(outcomes: Sequence[PromptOutcome]) -> dict[str, dict[str, Any]]:
    """Return the numbers of each quality measure that was asked.

    - ``num_prompts``, ``num_texts``: what it could judge; turns of a prompt are one.
    - ``num_cut``: texts of either side that a length limit ended; cut answers can be
      right and yet count as wrong.
    - ``speculative``, ``baseline``: the measure of both sides.
    - ``difference``: the first less the second.
    - ``margin``: the difference that was said not to matter.
    - ``difference_ci90``, ``equivalence_p_value``: of two one-sided tests that the
      difference is inside of the margin, on jackknife pseudo-values of the prompts;
      ``None`` for fewer than five prompts.
    - ``equivalent``: whether they show it, at 5%; ``None`` for fewer than five prompts,
      and where the baseline itself is within the margin of 0, as then texts with
      nothing right in them would pass.
    """
    names = dict.fromkeys(s.measure for outcome in outcomes for s in outcome.scores)
    return {name: _compared(outcomes, name) for name in names}


def _compared(outcomes: Sequence[PromptOutcome], name: str) -> dict[str, Any]:
    judged = [(o, s) for o in outcomes for s in o.scores if s.measure == name]
    first = judged[0][1]
    rows = _rows(judged)
    half = rows.shape[1] // 2
    total = rows.sum(axis=0)
    sides = (result for o, _ in judged for result in (o.speculative, o.baseline))

    def difference(sums: Floats) -> Floats:
        speculative = pooled(sums[..., :half], first.pooling)
        return speculative - pooled(sums[..., half:], first.pooling)

    known: dict[str, Any] = {
        "num_prompts": len(rows),
        "num_texts": len(judged),
        "num_cut": sum(result.finish_reason == "length" for result in sides),
        "speculative": float(pooled(total[:half], first.pooling)),
        "baseline": float(pooled(total[half:], first.pooling)),
        "difference": float(difference(total)),
        "margin": first.margin,
        "difference_ci90": None,
        "equivalence_p_value": None,
        "equivalent": None,
    }
    if len(rows) < _LEAST_PROMPTS:
        return known
    # Pseudo-values make a mean of what is none (corpus BLEU), and change no mean.
    left_out = difference(total - rows)
    pseudo_values = len(rows) * known["difference"] - (len(rows) - 1) * left_out
    found = equivalence(list(pseudo_values), first.margin, first.largest)
    assert found is not None
    return {
        **known,
        "difference_ci90": [found.interval.low, found.interval.high],
        "equivalence_p_value": found.p_value,
        "equivalent": found.shown if known["baseline"] > first.margin else None,
    }


def _rows(judged: Sequence[tuple[PromptOutcome, Score]]) -> Floats:
    """Return both sides' numbers, summed over the turns of each prompt.  # [P, 2C]."""
    sums: dict[str, Floats] = {}
    for outcome, score in judged:
        row = np.array([*score.speculative, *score.baseline], dtype=float)
        sums[outcome.prompt_id] = sums.get(outcome.prompt_id, 0.0) + row
    return np.stack(list(sums.values()))


def pooled(sums: Floats, pooling: Pooling) -> Floats:
    """Return a measure of sums over texts.

    Args:
        sums: Sums of a measure's parts.  # [..., C]
        pooling: How they become the measure.
    """
    if pooling == "bleu":
        return _bleu(sums)
    ratio: Floats = sums[..., 0] / sums[..., 1]
    return ratio


def _bleu(sums: Floats) -> Floats:
    """Return corpus BLEU as sacrebleu does by default (exponential smoothing)."""
    matches, counts = sums[..., :_ORDERS], sums[..., _ORDERS : 2 * _ORDERS]
    length, wanted = sums[..., -2], sums[..., -1]
    missed = (matches == 0) & (counts > 0)
    smoothed = 0.5 ** np.cumsum(missed, axis=-1)
    share = np.where(missed, smoothed, matches) / np.maximum(counts, 1)
    whole = (counts > 0).all(axis=-1) & (matches > 0).any(axis=-1)
    mean = np.exp(np.log(np.maximum(share, np.finfo(float).tiny)).mean(axis=-1))
    brevity = np.exp(np.minimum(0.0, 1 - wanted / np.maximum(length, 1)))
    return np.where(whole, 100 * brevity * mean, 0.0)
