"""The tables that W&B is told of a run: rows by name, from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from treespec.acceptance_metrics import acceptance_by_depth
from treespec.metrics import summarize_prompt
from treespec.outcome import PromptOutcome
from treespec.stats import wilson_interval
from treespec.untimed import without_speeds

Row = dict[str, Any]


def tables(outcomes: Sequence[PromptOutcome], is_timed: bool) -> dict[str, list[Row]]:
    """Return every table by its name; one without rows is left out.

    Args:
        outcomes: All prompts of a run.
        is_timed: Whether their times are their own; if not, no speed is told.
    """
    found = {
        "prompts": _prompts(outcomes, is_timed),
        "acceptance_by_depth": _by_depth(outcomes),
        "acceptance_by_rank": _by_rank(outcomes),
    }
    return {name: rows for name, rows in found.items() if rows}


def _prompts(outcomes: Sequence[PromptOutcome], is_timed: bool) -> list[Row]:
    rows = [
        {
            "prompt_idx": index,
            "id": outcome.id,
            "category": outcome.category,
            "lossless": outcome.lossless,
            "num_prompt_tokens": outcome.num_prompt_tokens,
            **summarize_prompt(outcome),
            "text": outcome.speculative.text,
        }
        for index, outcome in enumerate(outcomes)
    ]
    return rows if is_timed else [without_speeds(row) for row in rows]


def _by_depth(outcomes: Sequence[PromptOutcome]) -> list[Row]:
    """Return the acceptance at each depth, named as in ``summary.json``."""
    steps = [step for outcome in outcomes for step in outcome.speculative.steps]
    found = acceptance_by_depth(steps)
    columns = zip(
        found["acceptance_rate_by_depth"],
        found["acceptance_rate_by_depth_ci95"],
        found["acceptance_rate_by_depth_conditional"],
        strict=True,
    )
    return [
        {
            "depth": depth,
            "acceptance_rate": rate,
            "low": low,
            "high": high,
            "conditional": conditional,
        }
        for depth, (rate, (low, high), conditional) in enumerate(columns, start=1)
    ]


def _by_rank(outcomes: Sequence[PromptOutcome]) -> list[Row]:
    """Return how often a judged node of each rank among its siblings was accepted."""
    steps = [step for outcome in outcomes for step in outcome.speculative.steps]
    judged = Counter(rank for step in steps for rank in step.judged_ranks)
    accepted = Counter(
        rank
        for step in steps
        for rank, hit in zip(step.judged_ranks, step.judged_accepted, strict=True)
        if hit
    )
    rows = []
    for rank in sorted(judged):
        interval = wilson_interval(accepted[rank], judged[rank])
        assert interval is not None
        rows.append(
            {
                "rank": rank,
                "num_judged": judged[rank],
                "num_accepted": accepted[rank],
                "acceptance_rate": accepted[rank] / judged[rank],
                "low": interval.low,
                "high": interval.high,
            }
        )
    return rows
