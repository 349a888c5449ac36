"""From records to numbers: every name of ``summary.json`` is defined once, here.

What a drafter's probabilities and a policy's forecasts are worth is defined in
``reliability`` and ``forecasts``.

Rules that hold throughout:

- The prefill yields the first token and is not a step. Decode seconds run from the
  first token to the last, so ``decoded`` tokens are all tokens but the first.
- A step is one target forward of one request. It commits its accepted draft tokens
  plus one recovered or bonus token, so autoregressive decoding has a mean acceptance
  length of exactly 1. Tokens cut by a stop or a length limit count nowhere.
- Sums are pooled over all steps of all prompts, unless the name says otherwise.
- The turns of a conversation are one prompt: they are summed before anything is
  resampled or averaged over prompts. Latencies are of requests, a turn each.
- What cannot be known is ``None`` (``null`` in JSON), never NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from treespec.forecasts import forecast_quality, reason_share
from treespec.outcome import PromptOutcome
from treespec.reliability import expected_calibration_error, reliability
from treespec.scores import quality
from treespec.stats import (
    Floats,
    bootstrap_interval,
    geometric_mean,
    wilson_interval,
)
from treespec.types import GenerationResult, StepRecord

Summary = dict[str, Any]

PLAIN = "autoregressive"
"""The baseline that is the decoder itself with speculation off."""

BOOTSTRAP_SEED = 0
MIN_PROMPTS_FOR_INTERVAL = 5


def summarize(
    outcomes: Sequence[PromptOutcome],
    wall_s: float,
    peak_memory_bytes: int | None = None,
    baseline: str = PLAIN,
) -> Summary:
    """Return ``summary.json``: all numbers over all prompts and per category.

    Args:
        outcomes: All prompts of a run.
        wall_s: Seconds in which the speculative side served all requests; with
            several requests at once less than the sum of their latencies.
        peak_memory_bytes: Peak device memory of the speculative side; ``None`` where
            it cannot be measured.
        baseline: What the speed-up is over.
    """
    categories = {outcome.category: None for outcome in outcomes}
    return {
        "baseline": baseline,
        **_summarize_group(outcomes),
        "throughput_rps": _ratio(len(outcomes), wall_s),
        "baseline_step_spread": baseline_step_spread(
            [step for outcome in outcomes for step in outcome.baseline.steps]
        ),
        "wall_s": wall_s,
        "peak_memory_bytes": peak_memory_bytes,
        "divergences": divergences(outcomes),
        "categories": {
            category: _summarize_group(
                [outcome for outcome in outcomes if outcome.category == category]
            )
            for category in categories
        },
    }


def summarize_prompt(outcome: PromptOutcome) -> Summary:
    """Return the headline numbers of one prompt, named as in ``summary.json``."""
    steps = outcome.speculative.steps
    return {
        "speedup": prompt_speedup(outcome),
        "tokens_per_second": tokens_per_second([outcome.speculative]),
        "baseline_tokens_per_second": tokens_per_second([outcome.baseline]),
        "mean_acceptance_length": mean_acceptance_length(steps),
        "num_accepted_per_step": num_accepted_per_step(steps),
        "acceptance_rate": acceptance_rate(steps),
        "num_steps": len(steps),
        "num_tokens": len(outcome.speculative.tokens),
    }


def _summarize_group(outcomes: Sequence[PromptOutcome]) -> Summary:
    speculative = [outcome.speculative for outcome in outcomes]
    baseline = [outcome.baseline for outcome in outcomes]
    steps = [step for result in speculative for step in result.steps]
    return {
        "num_prompts": len(by_prompt(outcomes)),
        "num_requests": len(outcomes),
        "num_tokens": sum(len(result.tokens) for result in speculative),
        "num_steps": len(steps),
        "speedup": speedup(outcomes),
        "speedup_ci95": speedup_ci95(outcomes),
        "speedup_geomean": speedup_geomean(outcomes),
        "tokens_per_second": tokens_per_second(speculative),
        "baseline_tokens_per_second": tokens_per_second(baseline),
        "mean_acceptance_length": mean_acceptance_length(steps),
        "mean_acceptance_length_by_prompt": mean_acceptance_length_by_prompt(outcomes),
        "num_accepted_per_step": num_accepted_per_step(steps),
        "acceptance_rate": acceptance_rate(steps),
        "acceptance_rate_of_evaluated": acceptance_rate_of_evaluated(steps),
        **acceptance_by_depth(steps),
        **node_acceptance(speculative),
        "accepted_rank_histogram": accepted_rank_histogram(steps),
        "accepted_source_histogram": accepted_source_histogram(steps),
        "mean_draft_forwards": _mean([step.num_draft_forwards for step in steps]),
        "mean_candidates": _mean([step.num_candidates for step in steps]),
        "mean_nodes": _mean([step.num_nodes for step in steps]),
        "mean_depth": _mean([step.depth for step in steps]),
        "skip_rate": skip_rate(steps),
        "no_draft_rate": no_draft_rate(steps),
        "reason_share": reason_share(steps),
        "forecast": forecast_quality(steps),
        "reliability": reliability(steps),
        "expected_calibration_error": expected_calibration_error(steps),
        "time_share": time_share(steps),
        "latency_ms": latency_ms(speculative),
        "baseline_latency_ms": latency_ms(baseline),
        "inter_token_ms": inter_token_ms(speculative),
        "ttft_ms": ttft_ms(speculative),
        "lossless": lossless_counts(outcomes),
        "exact_match": exact_match(outcomes),
        **token_logprobs(outcomes),
        "quality": quality(outcomes),
    }


# Speed


def speedup(outcomes: Sequence[PromptOutcome]) -> float | None:
    """Return baseline over speculative seconds per decoded token, totals over prompts.

    When both sides decode equally many tokens this is the ratio of total decode
    times. Where a tie or sampling made lengths differ, a longer text must count
    neither for nor against speculation. Prompts with nothing to decode on either side
    are left out.
    """
    rows = _decode_rows(outcomes)
    return float(_pooled_speedup(rows.sum(axis=0))) if len(rows) else None


def speedup_ci95(outcomes: Sequence[PromptOutcome]) -> list[float] | None:
    """Return the 95% BCa interval of ``speedup`` over prompts, paired.

    ``None`` for fewer than five prompts: resampling so few says nothing of others.
    """
    if len(by_prompt(outcomes)) < MIN_PROMPTS_FOR_INTERVAL:
        return None
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    interval = bootstrap_interval(_decode_rows(outcomes), _pooled_speedup, rng)
    return None if interval is None else [interval.low, interval.high]


def speedup_geomean(outcomes: Sequence[PromptOutcome]) -> float | None:
    """Return the geometric mean over prompts of each prompt's speed-up."""
    ratios = [speedup(turns) for turns in by_prompt(outcomes)]
    return geometric_mean([ratio for ratio in ratios if ratio is not None])


def prompt_speedup(outcome: PromptOutcome) -> float | None:
    """Return ``speedup`` of one prompt."""
    return speedup([outcome])


def by_prompt(outcomes: Sequence[PromptOutcome]) -> list[list[PromptOutcome]]:
    """Return the turns of each prompt, prompts in their order."""
    turns: dict[str, list[PromptOutcome]] = {}
    for outcome in outcomes:
        turns.setdefault(outcome.prompt_id, []).append(outcome)
    return list(turns.values())


def tokens_per_second(results: Sequence[GenerationResult]) -> float | None:
    """Return decoded tokens per decode second of a request; prefill stands apart."""
    return _ratio(
        sum(_num_decoded(result) for result in results),
        sum(result.decode_s for result in results),
    )


def _num_decoded(result: GenerationResult) -> int:
    return max(len(result.tokens) - 1, 0)


def _decode_rows(outcomes: Sequence[PromptOutcome]) -> Floats:
    """Return seconds and decoded tokens, baseline first, of comparable prompts.

    Shape [P, 4], turns summed; P counts only prompts with a turn that decoded something
    on both sides, and only such turns.
    """
    rows = []
    for turns in by_prompt(outcomes):
        known = [row for row in map(_decode_row, turns) if min(row) > 0]
        if known:
            rows.append(np.sum(known, axis=0))
    return np.array(rows, dtype=float).reshape(-1, 4)


def _decode_row(outcome: PromptOutcome) -> tuple[float, ...]:
    return (
        outcome.baseline.decode_s,
        _num_decoded(outcome.baseline),
        outcome.speculative.decode_s,
        _num_decoded(outcome.speculative),
    )


def _pooled_speedup(sums: Floats) -> Floats:
    baseline_s, baseline_tokens, speculative_s, speculative_tokens = np.moveaxis(
        sums, -1, 0
    )
    ratio: Floats = (baseline_s / baseline_tokens) / (
        speculative_s / speculative_tokens
    )
    return ratio


# Acceptance


def mean_acceptance_length(steps: Sequence[StepRecord]) -> float | None:
    """Return committed tokens per target forward, recovered or bonus token included."""
    return _mean([step.num_committed for step in steps])


def mean_acceptance_length_by_prompt(
    outcomes: Sequence[PromptOutcome],
) -> float | None:
    """Return the mean over prompts of each prompt's ``mean_acceptance_length``."""
    lengths = [
        mean_acceptance_length([step for o in turns for step in o.speculative.steps])
        for turns in by_prompt(outcomes)
    ]
    return _mean([length for length in lengths if length is not None])


def num_accepted_per_step(steps: Sequence[StepRecord]) -> float | None:
    """Return accepted draft tokens per step: no recovered or bonus token."""
    return _mean([step.num_accepted for step in steps])


def acceptance_rate(steps: Sequence[StepRecord]) -> float | None:
    """Return accepted draft tokens per drafted (and verified) node."""
    return _ratio(
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
    return _ratio(
        sum(step.num_accepted for step in steps),
        sum(_num_evaluated(step) for step in steps),
    )


def acceptance_by_depth(steps: Sequence[StepRecord]) -> Summary:
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
        "acceptance_rate_by_depth": [_ratio(count, len(steps)) for count in hits],
        "acceptance_rate_by_depth_ci95": [
            [interval.low, interval.high]
            for interval in intervals
            if interval is not None
        ],
        "acceptance_rate_by_depth_conditional": [
            _ratio(*counts) for counts in zip(hits, arrived, strict=True)
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


def node_acceptance(results: Sequence[GenerationResult]) -> Summary:
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
    realised, optimal = _mean(accepted), _mean(optima)
    gap = None if realised is None or optimal is None else optimal - realised
    return {
        "node_acceptance": realised,
        "optimal_node_acceptance": optimal,
        "node_acceptance_gap": gap,
    }


def skip_rate(steps: Sequence[StepRecord]) -> float | None:
    """Return the share of steps whose budget was zero: speculation was off."""
    return _ratio(sum(not _speculates(step) for step in steps), len(steps))


def no_draft_rate(steps: Sequence[StepRecord]) -> float | None:
    """Return the share of steps that might have drafted and found nothing to draft."""
    return _ratio(
        sum(_speculates(step) and step.num_nodes == 0 for step in steps), len(steps)
    )


def _speculates(step: StepRecord) -> bool:
    return step.max_depth > 0 and step.max_nodes > 0


# Time


def time_share(steps: Sequence[StepRecord]) -> dict[str, float | None]:
    """Return which share of all steps' seconds each phase took; the sum is 1.

    ``overhead`` is the rest of the step: the decoder's own work and the controller's
    and policy's planning (``plan_s`` in the step records).
    """
    phases = {
        "draft": sum(step.draft_s for step in steps),
        "verify": sum(step.verify_s for step in steps),
        "accept": sum(step.accept_s for step in steps),
        "commit": sum(step.commit_s for step in steps),
    }
    measured = sum(phases.values())
    phases["overhead"] = max(sum(step.step_s for step in steps) - measured, 0.0)
    total = measured + phases["overhead"]
    return {phase: _ratio(seconds, total) for phase, seconds in phases.items()}


def baseline_step_spread(steps: Sequence[StepRecord]) -> float | None:
    """Return the 90th percentile of plain steps' seconds over their median.

    Plain steps all do the same work, so on a quiet machine this is little above 1.
    """
    marks = _percentiles([step.step_s for step in steps], (50, 90))
    low, high = marks["p50"], marks["p90"]
    return None if low is None or high is None else _ratio(high, low)


def latency_ms(results: Sequence[GenerationResult]) -> dict[str, float | None]:
    """Return milliseconds from a request's admission to its last token."""
    values = [1e3 * (result.prefill_s + result.decode_s) for result in results]
    return {**_percentiles(values, (50, 90, 99)), "mean": _mean(values)}


def inter_token_ms(results: Sequence[GenerationResult]) -> dict[str, float | None]:
    """Return milliseconds per token after the first, percentiles over all tokens.

    Tokens of one step arrive together: each gets its share of the wait for the step,
    so that the values of a request sum to its decode time.
    """
    values = [gap for result in results for gap in _token_gaps_ms(result)]
    return _percentiles(values, (50, 99))


def _token_gaps_ms(result: GenerationResult) -> list[float]:
    times, counts = np.unique(result.token_times_s, return_counts=True)
    waits = 1e3 * np.diff(times) / counts[1:]
    return list(np.repeat(waits, counts[1:]))


def ttft_ms(results: Sequence[GenerationResult]) -> float | None:
    """Return the median of milliseconds from admission to the first token."""
    return _percentiles([1e3 * result.prefill_s for result in results], (50,))["p50"]


# Losslessness


def lossless_counts(outcomes: Sequence[PromptOutcome]) -> Summary:
    """Return how many texts were checked against the baseline, and what came out.

    ``rule_is_lossless`` is false where the rule does not promise the target's law.
    """
    counts = Counter(outcome.lossless for outcome in outcomes)
    return {
        "rule_is_lossless": counts["lossy"] == 0,
        "checked": len(outcomes) - counts["unchecked"] - counts["lossy"],
        "identical": counts["identical"],
        "ties": counts["tie"],
        "violations": counts["violation"],
    }


def exact_match(outcomes: Sequence[PromptOutcome]) -> float | None:
    """Return the share of texts that are token for token the baseline's.

    What to ask of greedy texts: 1 but for ties under a lossless rule, less under a
    lossy one. Sampled texts match only where the rule draws like plain decoding.
    """
    same = [o.speculative.tokens == o.baseline.tokens for o in outcomes]
    return _mean(same)


def token_logprobs(outcomes: Sequence[PromptOutcome]) -> dict[str, float | None]:
    """Return both means of ``Quality`` over all new tokens; ``None`` unless lossy.

    A lossy rule trades likeness to the target for speed: its speed-up says nothing
    without them.
    """
    pairs = [(o, o.quality) for o in outcomes if o.quality is not None]
    return {
        "mean_token_logprob": _mean_by_token(
            [(o.speculative, quality.mean_token_logprob) for o, quality in pairs]
        ),
        "baseline_mean_token_logprob": _mean_by_token(
            [(o.baseline, quality.baseline_mean_token_logprob) for o, quality in pairs]
        ),
    }


def _mean_by_token(
    means: Sequence[tuple[GenerationResult, float | None]],
) -> float | None:
    """Return the mean over tokens of what is known as a mean per text."""
    known = [(len(result.tokens), mean) for result, mean in means if mean is not None]
    return _ratio(
        sum(count * mean for count, mean in known), sum(count for count, _ in known)
    )


def divergences(outcomes: Sequence[PromptOutcome]) -> list[dict[str, Any]]:
    """Return where texts left the baseline's: prompt, verdict, margin and noise."""
    return [
        {"id": outcome.id, "lossless": outcome.lossless, **asdict(outcome.divergence)}
        for outcome in outcomes
        if outcome.divergence is not None
    ]


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None


def _mean(values: Sequence[float]) -> float | None:
    return _ratio(sum(values), len(values))


def _percentiles(
    values: Sequence[float], percents: Iterable[int]
) -> dict[str, float | None]:
    return {
        f"p{percent}": float(np.percentile(values, percent)) if values else None
        for percent in percents
    }
