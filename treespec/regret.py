"""How far a planner is from the best that one could have done in hindsight.

Two measures per category of prompts. *Regret* is to the fixed strategy that turned out
fastest there, of those in the sweep. The *bounds* are all-knowing: the target's own
tokens are the draft, at no cost or written by the draft model.

Measured seconds hold the noise of the machine, and the fastest of many noisy runs looks
faster than it is. So regret is told in three ways: of seconds, of seconds over those of
the plain decoding that each run did in turns with its own, which takes a drift of the
machine between runs away, and of seconds by the cost profile, which have no noise. Each
is told against the strategy that is best by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treespec.closed_form import break_even_acceptance
from treespec.costs import Costs
from treespec.metrics import (
    BOOTSTRAP_SEED,
    MIN_PROMPTS_FOR_INTERVAL,
    by_prompt,
    speedup,
)
from treespec.outcome import PromptOutcome
from treespec.pricing import chain_draft_s, free_draft_s, planned_s, priced_s
from treespec.stats import Floats, Interval, bootstrap_interval
from treespec.sweep import Contender, Sweep
from treespec.types import GenerationResult

ALL = "all"
"""Name of the row over all prompts."""
CHAIN_LENGTHS = (1, 2, 4, 8)
"""Chains whose break-even point is told."""


@dataclass(frozen=True, slots=True)
class Regret:
    """A planner and the best fixed strategy on some prompts.

    Attributes:
        best: The fixed strategy with the fewest seconds per token: ``ratio`` is to it.
        ratio: The planner's seconds per token over the best one's, less 1.
        interval: Its 95% interval over prompts, paired; ``None`` for fewer than five.
            The best strategy is taken as given.
        of_speedup: As ``ratio``, each side over the plain decoding of its own run, to
            the strategy with the largest such speed-up.
        priced: As ``ratio``, with the seconds of the cost profile, to the strategy with
            the fewest of them.
    """

    best: Contender
    ratio: float
    interval: Interval | None
    of_speedup: float | None
    priced: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """A planner's seconds on some prompts, and those of an all-knowing drafter.

    Attributes:
        measured_s: Decode seconds.
        planned_s: Seconds that it expected; ``None`` if it expected none.
        priced_s: Seconds of its steps by the cost profile.
        free_draft_s: Least seconds for the same texts if right drafts cost nothing.
        chain_draft_s: Least seconds if the draft model writes them; ``None`` if no run
            of the sweep has one.
    """

    measured_s: float
    planned_s: float | None
    priced_s: float
    free_draft_s: float
    chain_draft_s: float | None


@dataclass(frozen=True, slots=True)
class CategoryRegret:
    """What is told of one category, or of all prompts.

    Attributes:
        category: Its name.
        num_prompts: Its prompts.
        num_decoded: New tokens of the planner, without each prompt's first.
        regret: To the best fixed strategy; ``None`` if there was nothing to decode.
        bounds: To the all-knowing ones.
        first_choice_acceptance: Of the judged first children of their parents, the
            share that was accepted; ``None`` if there were none.
    """

    category: str
    num_prompts: int
    num_decoded: int
    regret: Regret | None
    bounds: Bounds
    first_choice_acceptance: float | None


@dataclass(frozen=True, slots=True)
class RegretReport:
    """Everything that ``treespec regret`` tells.

    Attributes:
        sweep: What was compared.
        rows: Category by category, and over all prompts.
        break_even: Length of a chain -> acceptance from which on it pays by the cost
            profile; ``None`` if it never does. Empty without a draft model.
        acceptance: Source of drafts -> ``first_choice_acceptance`` of its nodes.
    """

    sweep: Sweep
    rows: tuple[CategoryRegret, ...]
    break_even: dict[int, float | None]
    acceptance: dict[str, float]


def regret(sweep: Sweep, costs: Costs) -> RegretReport:
    """Return a planner's distance to the best fixed strategy and to the bounds.

    Args:
        sweep: The runs.
        costs: The cost profile of their models and machine.
    """
    results = [outcome.speculative for outcome in sweep.planner.outcomes]
    chains = CHAIN_LENGTHS if _has_draft_model(sweep) else ()
    length = _median_length(results)
    names = (*sweep.categories, ALL)
    return RegretReport(
        sweep=sweep,
        rows=tuple(_category_regret(sweep, costs, name) for name in names),
        break_even={num: break_even_acceptance(costs, num, length) for num in chains},
        acceptance=acceptance_by_source(results),
    )


def _has_draft_model(sweep: Sweep) -> bool:
    """Return whether any run has one: only then the profile knows what it costs."""
    return any(
        step.num_draft_forwards
        for contender in (sweep.planner, *sweep.fixed, *sweep.adaptive)
        for outcome in contender.outcomes
        for step in outcome.speculative.steps
    )


def _median_length(results: Sequence[GenerationResult]) -> int:
    """Return a usual number of committed tokens: half-way through a middling text."""
    lengths = [len(r.prompt_tokens) + len(r.tokens) // 2 for r in results]
    return int(np.median(lengths)) if lengths else 0


def _category_regret(sweep: Sweep, costs: Costs, category: str) -> CategoryRegret:
    own = _within(sweep.planner, category)
    fixed = [_within(contender, category) for contender in sweep.fixed]
    results = [outcome.speculative for outcome in own.outcomes]
    return CategoryRegret(
        category=category,
        num_prompts=len(by_prompt(own.outcomes)),
        num_decoded=sum(map(_num_decoded, results)),
        regret=_regret(own, fixed, costs),
        bounds=_bounds(results, costs, sweep),
        first_choice_acceptance=_rate(_first_choices(results)),
    )


def _within(contender: Contender, category: str) -> Contender:
    outcomes = contender.outcomes
    if category != ALL:
        outcomes = tuple(o for o in outcomes if o.category == category)
    return replace(contender, outcomes=outcomes)


def _regret(own: Contender, fixed: Sequence[Contender], costs: Costs) -> Regret | None:
    measured = _measured_rows(own)
    rivals = [(_measured_rows(rival), rival) for rival in fixed]
    rivals = [(rows, rival) for rows, rival in rivals if rows[:, 1].any()]
    if not rivals or not measured[:, 1].any():
        return None
    rows, best = min(rivals, key=lambda pair: _token_s(pair[0]))
    paired = np.hstack([measured, rows])
    priced = [_token_s(_priced_rows(rival, costs)) for _, rival in rivals]
    speedups = [speedup(rival.outcomes) for _, rival in rivals]
    interval = None
    if (paired[:, [1, 3]].min(axis=1) > 0).sum() >= MIN_PROMPTS_FOR_INTERVAL:
        rng = np.random.default_rng(BOOTSTRAP_SEED)
        interval = bootstrap_interval(paired, _pooled_regret, rng)
    return Regret(
        best=best,
        ratio=float(_pooled_regret(paired.sum(axis=0))),
        interval=interval,
        of_speedup=_regret_of_speedup(own.outcomes, speedups),
        priced=_token_s(_priced_rows(own, costs)) / min(priced) - 1,
    )


def _pooled_regret(sums: Floats) -> Floats:
    """Return regrets from seconds and tokens of the planner, then of the other."""
    own_s, num_own, best_s, num_best = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a resample without tokens
        ratio: Floats = (own_s / num_own) / (best_s / num_best) - 1
    return ratio


def _regret_of_speedup(
    own: Sequence[PromptOutcome], rivals: Sequence[float | None]
) -> float | None:
    own_speedup = speedup(own)
    best = max((rival for rival in rivals if rival is not None), default=None)
    return None if not own_speedup or best is None else best / own_speedup - 1


def _measured_rows(contender: Contender) -> Floats:  # [P, 2]
    """Return decode seconds and decoded tokens of each prompt, its turns summed."""
    return _rows(contender, lambda result: result.decode_s)


def _priced_rows(contender: Contender, costs: Costs) -> Floats:  # [P, 2]
    """As ``_measured_rows``, with the seconds of the cost profile."""
    return _rows(contender, lambda result: priced_s(costs, result))


def _rows(contender: Contender, seconds: Callable[[GenerationResult], float]) -> Floats:
    rows = [
        (
            sum(seconds(turn.speculative) for turn in turns),
            sum(_num_decoded(turn.speculative) for turn in turns),
        )
        for turns in by_prompt(contender.outcomes)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _token_s(rows: Floats) -> float:
    seconds, num_tokens = rows.sum(axis=0)
    return float(seconds / num_tokens)


def _bounds(results: Sequence[GenerationResult], costs: Costs, sweep: Sweep) -> Bounds:
    plans = [planned_s(costs, result) for result in results if result.steps]
    known = [plan for plan in plans if plan is not None]
    context = min(_contexts(sweep.planner_config.get("drafter")), default=None)
    sizes = [(len(result.prompt_tokens), len(result.tokens)) for result in results]
    return Bounds(
        measured_s=sum(result.decode_s for result in results),
        planned_s=sum(known) if known and len(known) == len(plans) else None,
        priced_s=sum(priced_s(costs, result) for result in results),
        free_draft_s=sum(free_draft_s(costs, *size) for size in sizes),
        chain_draft_s=sum(chain_draft_s(costs, *size, context) for size in sizes)
        if _has_draft_model(sweep)
        else None,
    )


def _contexts(part: object) -> Iterator[int]:
    """Return the limits of what draft models read that a configuration has."""
    if isinstance(part, Mapping):
        if isinstance(part.get("context"), int):
            yield part["context"]
        part = list(part.values())
    if isinstance(part, list):
        for member in part:
            yield from _contexts(member)


def acceptance_by_source(results: Sequence[GenerationResult]) -> dict[str, float]:
    """Return for each source the share of its judged first children that was accepted.

    The first child of a parent is the one that a chain would have drafted.
    """
    choices = _first_choices(results)
    sources = sorted({source for source, _ in choices})
    rates = {s: _rate([c for c in choices if c[0] == s]) for s in sources}
    return {source: rate for source, rate in rates.items() if rate is not None}


def _first_choices(results: Sequence[GenerationResult]) -> list[tuple[str, bool]]:
    """Return source and fate of every judged node that is its parent's first child."""
    return [
        (source, accepted)
        for result in results
        for step in result.steps
        for source, rank, accepted in zip(
            step.judged_sources, step.judged_ranks, step.judged_accepted, strict=True
        )
        if rank == 0
    ]


def _rate(choices: Sequence[tuple[str, bool]]) -> float | None:
    return sum(kept for _, kept in choices) / len(choices) if choices else None


def _num_decoded(result: GenerationResult) -> int:
    return max(len(result.tokens) - 1, 0)
