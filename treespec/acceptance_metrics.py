"""What became of drafts: how many were accepted, where in the tree, and from whom.

All of it is counted from the records of steps; no number here is a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from treespec.stats import (
    wilson_interval,
)
from treespec.types import GenerationResult, StepRecord


def mean_acceptance_length(steps: Sequence[StepRecord]) -> float | None:
    """Return committed tokens per target forward, recovered or bonus token included."""
    return mean([step.num_committed for step in steps])


def num_accepted_per_step(steps: Sequence[StepRecord]) -> float | None:
    """Return accepted draft tokens per step: no recovered or bonus token."""
    return mean([step.num_accepted for step in steps])


def acceptance_rate(steps: Sequence[StepRecord]) -> float | None:
    """Return accepted draft tokens per drafted (and verified) node."""
    return ratio(
        sum(step.num_accepted for step in steps),
        sum(step.num_nodes for step in steps),
    )


def acceptance_rate_of_evaluated(steps: Sequence[StepRecord]) -> float | None:
    """Return accepted per *evaluated* draft token of chains; ``None`` for trees.

    A step evaluates what it accepts plus the one token it rejects, so this estimates
    the overlap of draft and target law, sum of min(p, q) (2211.17192).
    """
    if any(step.width > 1 for step in steps):
        return None
    return ratio(
        sum(step.num_accepted for step in steps),
        sum(_num_evaluated(step) for step in steps),
    )


def acceptance_by_depth(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Return acceptance at depth 1, 2, ... down to the deepest tree.

    - ``acceptance_rate_by_depth``: steps that accepted a node at the depth, of all
      steps; never rises with depth.
    - ``acceptance_rate_by_depth_ci95``: its Wilson intervals.
    - ``acceptance_rate_by_depth_conditional``: the same, of the steps whose accepted
      path arrived one above at a node that has children; ``None`` where none did.
    """
    depths = range(1, max((step.depth for step in steps), default=0) + 1)
    hits = [sum(step.num_accepted >= depth for step in steps) for depth in depths]
    arrived = [sum(_num_evaluated(step) >= depth for step in steps) for depth in depths]
    intervals = [wilson_interval(count, len(steps)) for count in hits]
    return {
        "acceptance_rate_by_depth": [ratio(count, len(steps)) for count in hits],
        "acceptance_rate_by_depth_ci95": [
            [interval.low, interval.high]
            for interval in intervals
            if interval is not None
        ],
        "acceptance_rate_by_depth_conditional": [
            ratio(*counts) for counts in zip(hits, arrived, strict=True)
        ],
    }


def _num_evaluated(step: StepRecord) -> int:
    """Return at how many depths the step compared children with the target.

    A recovered token tells that the accepted path ended at a node with children; a
    bonus token, that it had none; a cut, that they were never compared.
    """
    return step.num_accepted + (step.num_nodes > 0 and step.next_kind == "recovered")


def accepted_rank_histogram(steps: Sequence[StepRecord]) -> list[int]:
    """Return how many accepted nodes were the first, second, ... of their siblings."""
    counts = Counter(rank for step in steps for rank in step.accepted_ranks)
    return [counts[rank] for rank in range(max(counts, default=-1) + 1)]


def accepted_source_histogram(steps: Sequence[StepRecord]) -> dict[str, int]:
    """Return how many accepted nodes each of the drafter's sources proposed."""
    counts = Counter(source for step in steps for source in step.accepted_sources)
    return dict(sorted(counts.items()))


def node_acceptance(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Return how often a child was accepted, and how often one could have been.

    A node is *evaluated* if it has children and the committed text arrived there; what
    a stop or a length limit cut counts nowhere. ``None`` without traced nodes.

    - ``node_acceptance``: evaluated nodes one of whose children was accepted, of all.
    - ``optimal_node_acceptance``: mean over evaluated nodes of the best probability
      that any rule could have there (``NodeTrace.optimal_acceptance``).
    - ``node_acceptance_gap``: the second less the first; what the rule leaves on the
      table. It scatters around the true gap, as accepting is a matter of chance. Rules
      that look at whole paths (block, traversal) decide a node with the fate of others
      in view, so below depth 1 they may exceed this optimum, and the gap be negative.
    """
    optima: list[float] = []
    accepted: list[bool] = []
    for result in results:
        nodes = [node for node in result.traces if node.optimal_acceptance is not None]
        families = {(node.step, node.parent): node.optimal_acceptance for node in nodes}
        arrived = {
            (node.step, node.parent) for node in nodes if node.verdict == "accepted"
        }
        optima += [optimum for optimum in families.values() if optimum is not None]
        accepted += [family in arrived for family in families]
    realised, optimal = mean(accepted), mean(optima)
    gap = None if realised is None or optimal is None else optimal - realised
    return {
        "node_acceptance": realised,
        "optimal_node_acceptance": optimal,
        "node_acceptance_gap": gap,
    }


def skip_rate(steps: Sequence[StepRecord]) -> float | None:
    """Return the share of steps whose budget was zero: speculation was off."""
    return ratio(sum(not _speculates(step) for step in steps), len(steps))


def no_draft_rate(steps: Sequence[StepRecord]) -> float | None:
    """Return the share of steps that might have drafted and found nothing to draft."""
    return ratio(
        sum(_speculates(step) and step.num_nodes == 0 for step in steps), len(steps)
    )


def _speculates(step: StepRecord) -> bool:
    return step.max_depth > 0 and step.max_nodes > 0


def ratio(numerator: float, denominator: float) -> float | None:
    """Return a quotient; ``None`` over nothing."""
    return numerator / denominator if denominator > 0 else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; ``None`` of nothing."""
    return ratio(sum(values), len(values))
