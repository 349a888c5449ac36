"""From records to numbers: every name of ``summary.json`` is defined once.

Here those of all of a run and of its times; what became of drafts is in
``acceptance_metrics``, what probabilities and forecasts are worth
in ``reliability`` and ``forecasts``.

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

from treespec.acceptance_metrics import (
    acceptance_by_depth,
    acceptance_rate,
    acceptance_rate_of_evaluated,
    accepted_rank_histogram,
    accepted_source_histogram,
    mean,
    mean_acceptance_length,
    no_draft_rate,
    node_acceptance,
    num_accepted_per_step,
    ratio,
    skip_rate,
)
from treespec.forecasts import forecast_quality, reason_share
from treespec.noise import repeat_noise
from treespec.outcome import PromptOutcome
from treespec.reliability import expected_calibration_error, reliability
from treespec.scores import quality
from treespec.stats import (
    Floats,
    bootstrap_interval,
    detectable_ratio,
    geometric_mean,
    geometric_mean_interval,
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
        "throughput_rps": ratio(len(outcomes), wall_s),
        "baseline_step_spread": baseline_step_spread(
            [step for outcome in outcomes for step in outcome.baseline.steps]
        ),
        "repeats": repeat_noise(outcomes),
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
        "speedup_geomean_ci95": speedup_geomean_ci95(outcomes),
        "detectable_speedup": detectable_ratio(prompt_speedups(outcomes)),
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
        "mean_draft_forwards": mean([step.num_draft_forwards for step in steps]),
        "mean_candidates": mean([step.num_candidates for step in steps]),
        "mean_nodes": mean([step.num_nodes for step in steps]),
        "mean_depth": mean([step.depth for step in steps]),
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

    ``None`` for fewer than five prompts that decoded something: resampling so few says
    nothing of others.
    """
    rows = _decode_rows(outcomes)
    if len(rows) < MIN_PROMPTS_FOR_INTERVAL:
        return None
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    interval = bootstrap_interval(rows, _pooled_speedup, rng)
    return None if interval is None else [interval.low, interval.high]


def speedup_geomean(outcomes: Sequence[PromptOutcome]) -> float | None:
    """Return the geometric mean over prompts of each prompt's speed-up."""
    return geometric_mean(prompt_speedups(outcomes))


def speedup_geomean_ci95(outcomes: Sequence[PromptOutcome]) -> list[float] | None:
    """Return the 95% BCa interval of ``speedup_geomean`` over prompts.

    ``None`` for fewer than five prompts, as with ``speedup_ci95``.
    """
    ratios = prompt_speedups(outcomes)
    if len(ratios) < MIN_PROMPTS_FOR_INTERVAL:
        return None
    interval = geometric_mean_interval(ratios, np.random.default_rng(BOOTSTRAP_SEED))
    return None if interval is None else [interval.low, interval.high]


def prompt_speedups(outcomes: Sequence[PromptOutcome]) -> list[float]:
    """Return the speed-up of each prompt that decoded something on both sides."""
    ratios = [speedup(turns) for turns in by_prompt(outcomes)]
    return [ratio for ratio in ratios if ratio is not None]


def prompt_speedup(outcome: PromptOutcome) -> float | None:
    """Return ``speedup`` of one prompt."""
    return speedup([outcome])


def by_prompt(outcomes: Sequence[PromptOutcome]) -> list[list[PromptOutcome]]:
    """Return the turns of each prompt, prompts in their order."""
    turns: dict[str, list[PromptOutcome]] = {}
    for outcome in outcomes:
        turns.setdefault(outcome.prompt_id, []).append(outcome)
    return list(turns.values())


def mean_acceptance_length_by_prompt(
    outcomes: Sequence[PromptOutcome],
) -> float | None:
    """Return the mean over prompts of each prompt's ``mean_acceptance_length``."""
    lengths = [
        mean_acceptance_length([step for o in turns for step in o.speculative.steps])
        for turns in by_prompt(outcomes)
    ]
    return mean([length for length in lengths if length is not None])


def tokens_per_second(results: Sequence[GenerationResult]) -> float | None:
    """Return decoded tokens per decode second of a request; prefill stands apart."""
    return ratio(
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
    return {phase: ratio(seconds, total) for phase, seconds in phases.items()}


def baseline_step_spread(steps: Sequence[StepRecord]) -> float | None:
    """Return the 90th percentile of plain steps' seconds over their median.

    Plain steps all do the same work, so on a quiet machine this is little above 1.
    """
    marks = _percentiles([step.step_s for step in steps], (50, 90))
    low, high = marks["p50"], marks["p90"]
    return None if low is None or high is None else ratio(high, low)


def latency_ms(results: Sequence[GenerationResult]) -> dict[str, float | None]:
    """Return milliseconds from a request's admission to its last token."""
    values = [1e3 * (result.prefill_s + result.decode_s) for result in results]
    return {**_percentiles(values, (50, 90, 99)), "mean": mean(values)}


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
    return mean(same)


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
    return ratio(
        sum(count * mean for count, mean in known), sum(count for count, _ in known)
    )


def divergences(outcomes: Sequence[PromptOutcome]) -> list[dict[str, Any]]:
    """Return where texts left the baseline's: prompt, verdict, margin and noise."""
    return [
        {"id": outcome.id, "lossless": outcome.lossless, **asdict(outcome.divergence)}
        for outcome in outcomes
        if outcome.divergence is not None
    ]


def _percentiles(
    values: Sequence[float], percents: Iterable[int]
) -> dict[str, float | None]:
    return {
        f"p{percent}": float(np.percentile(values, percent)) if values else None
        for percent in percents
    }
