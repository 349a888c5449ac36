"""Are a drafter's probabilities what they say? Judged nodes against their fate.

A node is *judged* if the committed text went through its parent, so that it was
decided whether the node is accepted. Its probability given its parent, as the drafter
had it, is then a claim that either came true or did not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from treespec.types import StepRecord

NUM_BINS = 10
"""Bins of equal width between probability 0 and 1."""

Diagram = dict[str, Any]
_Claim = tuple[float, bool]  # a probability, and whether the node was accepted


def reliability(steps: Sequence[StepRecord]) -> dict[str, Diagram]:
    """Return for each source how often nodes of some probability were accepted.

    Judged nodes whose probability is not a finite number are left out. Per source:

    - ``num_judged``, ``mean_prob``, ``acceptance``: how many nodes, the mean of their
      probabilities, and the share of them that was accepted.
    - ``expected_calibration_error``: mean over nodes of the distance between
      ``mean_prob`` and ``acceptance`` of the node's bin (1706.04599).
    - ``bins``: the first three for each bin ``low <= probability < high`` that has
      nodes; the last one holds probability 1 as well. Drawn as ``acceptance`` over
      ``mean_prob``, they are the reliability diagram.
    """
    claims: dict[str, list[_Claim]] = {}
    for step in steps:
        judged = (step.judged_sources, step.judged_probs, step.judged_accepted)
        for source, prob, accepted in zip(*judged, strict=True):
            if math.isfinite(prob):
                claims.setdefault(source, []).append((prob, accepted))
    return {source: _diagram(claims[source]) for source in sorted(claims)}


def expected_calibration_error(steps: Sequence[StepRecord]) -> float | None:
    """Return the mean over all judged nodes of the error in the bin of their source.

    Sources do not make up for one another: if one promises too much and another too
    little, both errors count. ``None`` if no node was judged.
    """
    diagrams = reliability(steps).values()
    return _error([row for diagram in diagrams for row in diagram["bins"]])


def _diagram(claims: Sequence[_Claim]) -> Diagram:
    binned: dict[int, list[_Claim]] = {}
    for claim in claims:
        place = min(int(claim[0] * NUM_BINS), NUM_BINS - 1)
        binned.setdefault(place, []).append(claim)
    bins = [
        {"low": place / NUM_BINS, "high": (place + 1) / NUM_BINS, **_averages(group)}
        for place, group in sorted(binned.items())
    ]
    return {
        **_averages(claims),
        "expected_calibration_error": _error(bins),
        "bins": bins,
    }


def _averages(claims: Sequence[_Claim]) -> Diagram:
    probs, accepted = zip(*claims, strict=True)
    return {
        "num_judged": len(claims),
        "mean_prob": sum(probs) / len(claims),
        "acceptance": sum(accepted) / len(claims),
    }


def _error(bins: Sequence[Diagram]) -> float | None:
    num_judged = sum(row["num_judged"] for row in bins)
    gaps = [
        row["num_judged"] * abs(row["mean_prob"] - row["acceptance"]) for row in bins
    ]
    return sum(gaps) / num_judged if num_judged else None
