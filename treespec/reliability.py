"""How far chances are from what came: the reliability table and its error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from treespec.belief import Belief
from treespec.types import StepRecord


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
