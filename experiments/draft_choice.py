"""Acceptance against cost of drafts, and which are not beaten in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import rules
from drawing import missing_notes, points
from engine import Answer, Measured, Study
from paired import (
    SEED,
    Estimate,
    acceptance,
    acceptance_moved,
    comparable,
    estimate,
    judged_row,
    speedup,
    step_rows,
    step_sums,
    verdict,
)
from treespec.analysis.chart import Chart, Panel, Points
from treespec.outcome import PromptOutcome
from treespec.sinks.reader import Run

_NUM_RESAMPLES = 2000
_LEAST_COST = 1e-3
"""Shares of a plain step below which costs are drawn and compared as equal."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A way to draft: how often its token is right, and what a token costs.

    Attributes:
        job: Its job.
        name: What it is called.
        run: Its run.
        acceptance: Share of judged drafted tokens that were accepted.
        cost: Seconds per drafted token over those of a plain step.
        speedup: What came of both.
        front_share: Share of resamples of the prompts in which no other draft is both
            cheaper and more often right.
    """

    job: str
    name: str
    run: Run
    acceptance: Estimate
    cost: Estimate
    speedup: Estimate
    front_share: float


def answer(measured: Measured) -> Answer:
    """Return the Pareto front, and the draft that was fastest."""
    names = measured.settings["names"]
    sampled = set(measured.settings["sampled"])
    groups = [
        [job for job in measured.runs if (job in sampled) == is_sampled]
        for is_sampled in (False, True)
    ]
    drafts = [draft for jobs in groups for draft in _drafts(measured, jobs, names)]
    greedy = [draft for draft in drafts if draft.job not in sampled]
    best = max(greedy or drafts, key=lambda draft: draft.speedup.value)
    front = [draft for draft in greedy if draft.front_share >= 0.5]
    frame = _frame(drafts)
    unbeaten = _listed([draft.name for draft in front])
    summary = (
        f"Fastest: {best.name}, {best.speedup.told('x')}, {verdict(best.speedup)}. Not "
        f"beaten in both cost and acceptance: {unbeaten}."
    )
    text = "\n\n".join(
        [_front_told(greedy), _best_told(best, greedy), _alignment_told(drafts)]
    )
    return Answer(
        summary,
        text,
        {"Drafts": frame},
        {"front": _chart(greedy, frame, measured)},
    )


def _drafts(
    measured: Measured, jobs: Sequence[str], names: dict[str, str]
) -> list[Draft]:
    runs = [measured.runs[job] for job in jobs]
    shares = front_shares(runs) if runs else []
    return [
        Draft(
            job,
            names.get(job, job),
            run,
            acceptance(run),
            _cost(run),
            speedup(run),
            share,
        )
        for job, run, share in zip(jobs, runs, shares, strict=True)
    ]


def _cost(run: Run) -> Estimate:
    """Return draft seconds per drafted token, over the seconds of a plain step."""
    rows = [
        [row.draft_s / row.plain_s, row.num_nodes]
        for row in step_rows(run)
        if row.num_nodes
    ]
    columns = np.array(rows, dtype=float).reshape(-1, 2)
    return estimate(columns, lambda sums: sums[..., 0] / sums[..., 1])


def front_shares(runs: Sequence[Run]) -> list[float]:
    """Return for each run how often it is on the front when prompts are resampled."""
    outcomes = comparable(runs)
    table = np.array([[_judged(outcome) for outcome in found] for found in outcomes])
    num_prompts = table.shape[1]
    if not num_prompts:
        return [float("nan")] * len(runs)
    rng = np.random.default_rng(SEED)
    drawn = rng.integers(0, num_prompts, (_NUM_RESAMPLES, num_prompts))
    sums = table[:, drawn].sum(axis=2)  # [J, B, 4]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = sums[..., 0] / sums[..., 1]
        costs = sums[..., 2] / sums[..., 3]
    return [float(share) for share in on_front(rates, costs).mean(axis=1)]


def on_front(
    rates: NDArray[np.float64], costs: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return which of several are beaten by none in both rate and cost.

    Args:
        rates: Acceptance, more is better; NaN where nothing was drafted.  # [J, ...]
        costs: Less is better; below a thousandth of a plain step all are equal.
    """
    rates = np.nan_to_num(rates, nan=0.0)
    costs = np.maximum(np.nan_to_num(costs, nan=0.0), _LEAST_COST)
    no_worse = (rates[None] >= rates[:, None]) & (costs[None] <= costs[:, None])
    better = (rates[None] > rates[:, None]) | (costs[None] < costs[:, None])
    result: NDArray[np.bool_] = np.logical_not((no_worse & better).any(axis=1))
    return result


def _judged(outcome: PromptOutcome) -> list[float]:
    """Return accepted and judged first children, draft cost and drafted tokens."""
    sums = step_sums(outcome)
    return [*judged_row(outcome), sums.draft_s / sums.plain_s, sums.num_nodes]


def _frame(drafts: Sequence[Draft]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "draft": draft.name,
            **draft.acceptance.columns("acceptance"),
            **draft.cost.columns("seconds per token over a plain step"),
            "tokens per step": draft.run.summary["mean_acceptance_length"],
            "steps without a draft": draft.run.summary["no_draft_rate"],
            **draft.speedup.columns("speed-up"),
            "on the front (share of resamples)": draft.front_share,
        }
        for draft in drafts
    )


def _front_told(drafts: Sequence[Draft]) -> str:
    parts = [
        f"{draft.name} (accepted {draft.acceptance.percent()}, "
        f"{draft.cost.told()} of a plain step per token; on the front in "
        f"{draft.front_share:.0%} of the resamples)"
        for draft in sorted(drafts, key=lambda draft: draft.cost.value)
        if draft.front_share >= 0.5
    ]
    beaten = [draft.name for draft in drafts if draft.front_share < 0.5]
    told = f"On the Pareto front, cheapest first: {_listed(parts, '; ')}."
    if beaten:
        told += f" Beaten in both by another: {_listed(beaten)}."
    return (
        f"{told} Acceptance is of the places where a token was drafted; lookup drafts "
        "at few of them, which the table tells."
    )


def _best_told(best: Draft, drafts: Sequence[Draft]) -> str:
    ranked = sorted(drafts, key=lambda draft: -draft.acceptance.value)
    most = ranked[0]
    told = (
        f"The fastest was {best.name} with {best.speedup.told('x')}: it "
        f"{verdict(best.speedup)}."
    )
    if most is not best:
        told += (
            f" The most often accepted one, {most.name} "
            f"({most.acceptance.percent()}), gave {most.speedup.told('x')}."
        )
    losing = [draft.name for draft in drafts if draft.speedup.high < 1]
    if losing:
        told += (
            f" Slower than plain decoding beyond their intervals: {_listed(losing)}."
        )
    return told


def _alignment_told(drafts: Sequence[Draft]) -> str:
    found = {draft.job: draft for draft in drafts}
    parts = []
    for left, right, what in (
        ("draft_model", "draft_int8", "Quantization"),
        ("draft_int8", "draft_int8_short", "Reading the end of the text only"),
        ("sampled", "sampled_cooler", "Drawing drafts at a lower temperature"),
    ):
        if left in found and right in found:
            a, b = found[left], found[right]
            moved = acceptance_moved(a.run, b.run)
            is_shown = moved.low > 0 or moved.high < 0
            word = "moved" if is_shown else "is not shown to move"
            parts.append(
                f"{what} {word} acceptance ({a.acceptance.percent()} and "
                f"{b.acceptance.percent()}, difference {moved.percent()}); a drafted "
                f"token cost {a.cost.told()} and {b.cost.told()} plain steps."
            )
    return " ".join(parts)


def _listed(words: Sequence[str], between: str = ", ") -> str:
    return between.join(words) or "none"


def _chart(drafts: Sequence[Draft], frame: pd.DataFrame, measured: Measured) -> Chart:
    drawn = [
        points(
            f"{draft.name}: {draft.speedup.value:.2f}x",
            [max(draft.cost.value, _LEAST_COST)],
            [draft.acceptance],
            style,
            join=False,
            labels=[draft.name],
        )
        for style, draft in enumerate(drafts)
        if np.isfinite(draft.acceptance.value) and np.isfinite(draft.cost.value)
    ]
    front = sorted(
        (max(draft.cost.value, _LEAST_COST), draft.acceptance.value)
        for draft in drafts
        if draft.front_share >= 0.5
    )
    line = Points(
        name="Pareto front",
        x=tuple(cost for cost, _ in front),
        y=tuple(rate for _, rate in front),
        join="steps",
        style=6,
        mark="none",
    )
    panel = Panel(
        "Seconds per drafted token over a plain step",
        "Drafted tokens accepted (share)",
        (*drawn, line) if front else tuple(drawn),
        x_scale="log",
        y_range=(0.0, 1.03),
    )
    num_prompts = len(next(iter(measured.runs.values())).outcomes)
    return Chart(
        f"Acceptance against cost (n = {num_prompts} prompts; legend: speed-up)",
        (panel,) if drawn else (),
        missing_notes(measured.missing),
        frame,
    )


STUDY = Study(
    answer=answer,
    rules={"names": rules.named(rules.text), "sampled": rules.many(rules.job)},
)
