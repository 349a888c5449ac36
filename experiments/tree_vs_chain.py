"""Trees against chains of as many nodes, and of steps that take as long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from drawing import PLAIN, missing_notes, points
from engine import Answer, Measured, Study
from paired import (
    Estimate,
    comparable,
    estimate,
    speedup,
    speedup_over,
    step_rows,
    step_sums,
    tokens_per_step,
    verdict,
)
from treespec.analysis import tables
from treespec.analysis.chart import Chart, Panel, Points
from treespec.errors import TreespecError
from treespec.sinks.reader import Run
from treespec.stats import Floats

SHAPES = ("chain", "tree")
_MOST = {"depth": 8, "rank": 3}
"""Deeper and later ones are seldom judged, and not told."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A job of the study: a shape, its budget of nodes, and what came of it."""

    shape: str
    budget: int
    run: Run
    speedup: Estimate
    tokens: Estimate
    step_cost: Estimate

    @property
    def name(self) -> str:
        """What it is called in sentences."""
        return f"{self.shape} of {self.budget}"


def answer(measured: Measured) -> Answer:
    """Return which shape is faster, and where."""
    jobs = [_shaped(name, run) for name, run in measured.runs.items()]
    by_shape = {s: [job for job in jobs if job.shape == s] for s in SHAPES}
    if not all(by_shape.values()):
        raise TreespecError("there is no answer without a chain and a tree")
    peaks = {
        s: max(found, key=lambda j: j.speedup.value) for s, found in by_shape.items()
    }
    chain, tree = peaks["chain"], peaks["tree"]
    ratio = speedup_over(tree.run, chain.run)
    equal_nodes = _equal_nodes(by_shape)
    equal_time = _equal_time(by_shape)
    text = "\n\n".join(
        [
            _peaks_told(chain, tree, ratio),
            _equal_nodes_told(equal_nodes),
            _equal_time_told(equal_time),
        ]
    )
    frames = {
        "Runs": _runs_frame(jobs),
        "Equal nodes: tree over chain": equal_nodes,
        "Equal time: tokens per step": equal_time,
        "Acceptance by depth": _named(tables.acceptance_by_depth(measured.results)),
        "Acceptance by rank among siblings": _named(
            tables.acceptance_by_rank(measured.results)
        ),
    }
    summary = (
        f"Over plain decoding, the fastest chain ({chain.budget} nodes) is "
        f"{chain.speedup.told('x')}, the fastest tree ({tree.budget} nodes) "
        f"{tree.speedup.told('x')}; tree over chain {ratio.told('x')}: {_word(ratio)}."
    )
    charts = {
        "speed": _speed_chart(by_shape, frames["Runs"], measured),
        "depth": _depth_chart(measured, frames["Acceptance by depth"]),
    }
    return Answer(summary, text, frames, charts)


def _shaped(name: str, run: Run) -> Shaped:
    shape, _, budget = name.partition("_")
    rows = step_rows(run)
    costs = np.array([[r.step_s, r.num_steps * r.plain_s] for r in rows])
    return Shaped(
        shape,
        int(budget),
        run,
        speedup(run),
        tokens_per_step(run),
        estimate(costs, lambda sums: sums[..., 0] / sums[..., 1]),
    )


def _runs_frame(jobs: Sequence[Shaped]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "strategy": job.name,
            **job.speedup.columns("speed-up"),
            **job.tokens.columns("tokens per step"),
            **job.step_cost.columns("step over plain step"),
            "nodes per step": job.run.summary["mean_nodes"],
            "draft forwards per step": job.run.summary["mean_draft_forwards"],
        }
        for job in jobs
    )


def _equal_nodes(by_shape: dict[str, list[Shaped]]) -> pd.DataFrame:
    chains = {job.budget: job for job in by_shape["chain"]}
    rows = []
    for tree in by_shape["tree"]:
        chain = chains.get(tree.budget)
        if chain is None:
            continue
        own, others = comparable([tree.run, chain.run])
        pairs = zip(map(step_sums, own), map(step_sums, others), strict=True)
        tokens = np.array(
            [
                [a.num_committed, a.num_steps, b.num_committed, b.num_steps]
                for a, b in pairs
            ],
            dtype=float,
        )
        rows.append(
            {
                "nodes": tree.budget,
                **estimate(tokens, _token_ratio).columns("tokens per step"),
                **speedup_over(tree.run, chain.run).columns("speed"),
            }
        )
    return pd.DataFrame(rows)


def _token_ratio(sums: Floats) -> Floats:
    ratio: Floats = (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
    return ratio


def _equal_time(by_shape: dict[str, list[Shaped]]) -> pd.DataFrame:
    """Return what chains commit in a tree's time, by a line between them."""
    chains, rows = by_shape["chain"], []
    for tree in by_shape["tree"]:
        found = comparable([tree.run, *(job.run for job in chains)])
        sums = [
            [
                number
                for outcome in outcomes
                for step in [step_sums(outcome)]
                for number in (
                    step.num_committed,
                    step.num_steps,
                    step.step_s / step.plain_s,
                )
            ]
            for outcomes in zip(*found, strict=True)
        ]
        columns = np.array(sums, dtype=float)
        own = estimate(columns, lambda s: s[..., 0] / s[..., 1])
        chain = estimate(columns, lambda s: _chain_tokens(s)[..., 0])
        ratio = estimate(
            columns, lambda s: s[..., 0] / s[..., 1] / _chain_tokens(s)[..., 0]
        )
        rows.append(
            {
                "strategy": tree.name,
                **tree.step_cost.columns("step over plain step"),
                **own.columns("tokens"),
                **chain.columns("tokens of a chain in that time"),
                **ratio.columns("tree over chain"),
            }
        )
    return pd.DataFrame(rows)


def _chain_tokens(sums: Floats) -> Floats:
    """Return the tokens of chains whose steps cost as much as the first job's.

    Args:
        sums: Committed tokens, steps and plain steps' worth of seconds of the tree and
            then of each chain.  # [..., 3 J]

    Returns:
        Tokens per step, between neighbouring chains in a line, from plain steps (one
        token at a cost of one) on; beyond the dearest chain what that one commits.
    """
    flat = sums.reshape(-1, sums.shape[-1] // 3, 3)
    tokens, costs = flat[..., 0] / flat[..., 1], flat[..., 2] / flat[..., 1]
    values = []
    for each_tokens, each_costs in zip(tokens, costs, strict=True):
        order = np.argsort(each_costs[1:])
        known_costs = np.concatenate([[1.0], each_costs[1:][order]])
        known_tokens = np.concatenate([[1.0], each_tokens[1:][order]])
        values.append(np.interp(each_costs[0], known_costs, known_tokens))
    result: Floats = np.array(values).reshape(*sums.shape[:-1], 1)
    return result


def _peaks_told(chain: Shaped, tree: Shaped, ratio: Estimate) -> str:
    return (
        f"Chains are fastest with {chain.budget} nodes ({chain.speedup.told('x')}), "
        f"trees with {tree.budget} ({tree.speedup.told('x')}). The fastest tree over "
        f"the fastest chain, paired over prompts: {ratio.told('x')}, so "
        f"{_word(ratio)}. "
        "(Both were chosen after the fact, which flatters both alike.) "
        f"{_pays(chain)} {_pays(tree)}"
    )


def _pays(job: Shaped) -> str:
    return f"The {job.name} {verdict(job.speedup)}."


def _word(ratio: Estimate) -> str:
    if ratio.low > 1:
        return "the tree is faster"
    if ratio.high < 1:
        return "the chain is faster"
    return "neither is shown to be faster"


def _equal_nodes_told(frame: pd.DataFrame) -> str:
    parts = [
        f"with {row['nodes']} nodes a tree commits {row['tokens per step']:.2f}x the "
        f"tokens of a chain per step ({row['tokens per step, 95%']}) and is "
        f"{row['speed']:.2f}x as fast ({row['speed, 95%']})"
        for row in frame.to_dict("records")
    ]
    return f"At equal nodes: {'; '.join(parts)}." if parts else ""


def _equal_time_told(frame: pd.DataFrame) -> str:
    parts = [
        f"in the time of a {row['strategy']}'s step, {row['tokens']:.2f} tokens to "
        f"{row['tokens of a chain in that time']:.2f} "
        f"({row['tree over chain']:.2f}x, {row['tree over chain, 95%']})"
        for row in frame.to_dict("records")
    ]
    return (
        "At equal time, tree to chain (between measured chains in a straight line, and "
        f"beyond the dearest one no more than it commits): {'; '.join(parts)}."
    )


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    shown = [
        c
        for c in frame.columns
        if not c.startswith("conditional_") or c.endswith("rate")
    ]
    key = "depth" if "depth" in frame else "rank"
    told = frame[frame[key] <= _MOST[key]]
    return told[shown].rename(columns={"run": "job"})


def _speed_chart(
    by_shape: dict[str, list[Shaped]], frame: pd.DataFrame, measured: Measured
) -> Chart:
    ordered = {s: sorted(jobs, key=lambda j: j.budget) for s, jobs in by_shape.items()}

    def marks(name: str) -> tuple[Points, ...]:
        return tuple(
            points(
                shape if name == "speedup" else "",
                [job.budget for job in jobs],
                [getattr(job, name) for job in jobs],
                style,
                stars=[int(np.argmax([job.speedup.value for job in jobs]))]
                if name == "speedup"
                else (),
                dodge=0.12 * style,
            )
            for style, (shape, jobs) in enumerate(ordered.items())
        )

    x_label = "Nodes verified per step (budget)"
    panels = (
        Panel(
            x_label,
            "Speed-up (times)",
            marks("speedup"),
            (PLAIN,),
            has_whole_x=True,
        ),
        Panel(
            x_label,
            "Tokens per step",
            marks("tokens"),
            has_whole_x=True,
        ),
    )
    num_prompts = len(next(iter(measured.runs.values())).outcomes)
    return Chart(
        f"Trees and chains of as many nodes (n = {num_prompts} prompts; star: fastest)",
        panels,
        missing_notes(measured.missing),
        frame,
    )


def _depth_chart(measured: Measured, frame: pd.DataFrame) -> Chart:
    jobs = [name for name in ("chain_8", "tree_8") if name in measured.runs]
    marks = []
    for style, job in enumerate(jobs):
        rows = frame[frame["job"] == job].to_dict("records")
        rates = [Estimate(row["rate"], row["low"], row["high"]) for row in rows]
        marks.append(
            points(
                job.replace("_", " of "),
                [r["depth"] for r in rows],
                rates,
                style,
                dodge=0.06 * style,
            )
        )
    panel = Panel(
        "Depth",
        "Steps that accepted a node there (share)",
        tuple(marks),
        has_whole_x=True,
    )
    return Chart("Acceptance by depth", (panel,) if marks else (), (), frame)


STUDY = Study(answer=answer)
