"""What ``treespec calibrate`` does: counts what a comb would gain, times forwards.

Acceptance by depth and rank is read from ordinary step records, so it is that of the
configured drafter, rule, sampling and prompts. Knows no Hydra.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm.auto import tqdm

from treespec.calibration import Calibration
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.environment import describe_machine
from treespec.errors import TreespecError
from treespec.job import Job
from treespec.neighbours import beside
from treespec.pipes import say
from treespec.policies import AbstractDraftPolicy, StaticTree, comb_tree
from treespec.policies.optimal_shape import PlannedShape, planned_shape
from treespec.preparing import check, devices, prepare
from treespec.stats import wilson_interval
from treespec.tasks import Task, Waiting, prompt_seed
from treespec.timings import measure_costs
from treespec.types import StepRecord

FILE = "calibration.json"
"""Name of the file in the run's folder."""
MAX_DEPTH = 10
"""Deepest tree that is recommended: the default of ``policy=optimal_tree``."""


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """A calibration that was written; ``str`` makes it tables.

    Attributes:
        calibration: The calibration.
        path: Its file.
        proposal: How the children came about.
        plan: The tree that costs least per token; ``None`` if nothing was accepted.
    """

    calibration: Calibration
    path: Path
    proposal: str
    plan: PlannedShape | None

    def __str__(self) -> str:
        """Return the acceptance, the costs and the tree that they recommend."""
        calibration, costs = self.calibration, self.calibration.costs
        assert costs is not None
        blocks = [
            _acceptance_table(calibration),
            _depth_table(calibration),
            _cost_table(costs),
            _recommendation(self.plan, costs),
        ]
        return "\n\n".join(blocks)


def calibrate(job: Job) -> CalibrationReport:
    """Decode a job's prompts with its comb, time forwards, and write what was found.

    Raises:
        TreespecError: The job cannot work, or its policy is no comb.
    """
    comb = _comb(job.strategies.policy)
    check(job)
    with beside(devices(job)):  # so that a timed run knows of this one
        return _calibrate(job, comb)


def _calibrate(job: Job, comb: StaticTree) -> CalibrationReport:
    prepared = prepare(job)
    num_ranks, depth = comb.shape.max_children, comb.shape.depth
    budget = Constant(depth, max_width=num_ranks, max_nodes=comb.shape.num_nodes)
    decoder = replace(prepared.decoder, controller=budget, trace=False)
    records = _decode(job, decoder, prepared.tasks)
    say("timing forwards")
    costs = measure_costs(decoder)
    about = {
        "num_steps": len(records),
        "config": job.config,
        "environment": {**describe_machine(), **prepared.environment},
    }
    reached, accepted = count(records, num_ranks, depth)
    calibration = Calibration(reached, accepted, costs, about)
    path = job.folder / FILE
    _write(calibration, path)
    return CalibrationReport(calibration, path, str(comb.proposal), _plan(calibration))


def count(
    records: Iterable[StepRecord], num_ranks: int, depth: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return ``reached`` and ``accepted`` of a ``Calibration`` from a comb's records.

    A node whose children the drafter did not know counts as reached: no tree would have
    had them either. What lies behind the end of a text counts nowhere.
    """
    reached = [0] * depth
    accepted = [[0] * num_ranks for _ in range(depth)]
    for record in records:
        ranks = record.accepted_ranks
        for above in range(min(depth, record.max_depth, len(ranks) + 1)):
            if any(ranks[:above]):
                break
            if above < len(ranks):
                accepted[above][ranks[above]] += 1
            elif record.next_kind is None:  # cut: nobody knows what came next
                break
            reached[above] += 1
    return tuple(reached), tuple(map(tuple, accepted))


def _comb(policy: AbstractDraftPolicy) -> StaticTree:
    if isinstance(policy, StaticTree):
        shape = policy.shape
        if comb_tree(shape.max_children, shape.depth).shape == shape:
            return policy
    raise TreespecError(
        "treespec calibrate measures with policy=comb_tree, got "
        f"{type(policy).__name__}; leave policy out, or change policy.num_ranks, "
        "policy.depth and policy.proposal"
    )


def _decode(
    job: Job, decoder: SpeculativeDecoder, tasks: Sequence[Task]
) -> list[StepRecord]:
    records: list[StepRecord] = []
    settings = job.settings
    waiting = Waiting(tasks, decoder.max_concurrent)
    with tqdm(total=len(tasks), desc="counting", unit="prompt") as bar:
        for batch in waiting:
            results = decoder.generate(
                [task.tokens for task in batch],
                job.sampling,
                settings.max_new_tokens,
                [prompt_seed(settings.seed, task.id) for task in batch],
                settings.stop,
            )
            for task, result in zip(batch, results, strict=True):
                records.extend(result.steps)
                waiting.answered(task, result.text or "")
                bar.update(task.turn == 1)
    return records


def _write(calibration: Calibration, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        calibration.write(path)
    except OSError as error:
        raise TreespecError(
            f"output_root: cannot write {path}: {error.strerror or error}; make room "
            "there, or choose another place with output_root=DIR"
        ) from error


def _plan(calibration: Calibration) -> PlannedShape | None:
    if not any(calibration.acceptance) or calibration.costs is None:
        return None
    return planned_shape([calibration.acceptance], calibration.costs, MAX_DEPTH)


def _acceptance_table(calibration: Calibration) -> str:
    num_reached = sum(calibration.reached)
    lines = [f"acceptance by rank, of {num_reached} nodes at all depths"]
    for rank, value in enumerate(calibration.acceptance):
        hits = sum(row[rank] for row in calibration.accepted)
        interval = wilson_interval(hits, num_reached)
        assert interval is not None
        lines.append(
            f"  rank {rank:<2} {value:.3f}  "
            f"[{interval.low:.3f}, {interval.high:.3f}] 95%"
        )
    return "\n".join(line.rstrip() for line in lines)


def _depth_table(calibration: Calibration) -> str:
    ranks = "".join(f"  rank {rank:<2}" for rank in range(calibration.num_ranks))
    lines = [f"depth  reached{ranks}"]
    rows = zip(calibration.reached, calibration.accepted, strict=True)
    for depth, (reached, row) in enumerate(rows, start=1):
        cells = (f"{hits / reached:9.3f}" if reached else f"{'-':>9}" for hits in row)
        lines.append(f"{depth:5}  {reached:7}{''.join(cells)}")
    return "\n".join(line.rstrip() for line in lines)


def _cost_table(costs: Costs) -> str:
    lines = ["rows or nodes  target ms  draft ms"]
    curves = costs.target_curve, costs.draft_curve
    for size in sorted({size for curve in curves for size in curve.rows}):
        cells = (
            f"{1000 * curve.at(size):.2f}" if size in curve.rows else "-"
            for curve in curves
        )
        lines.append("{:13}  {:>9}  {:>8}".format(size, *cells))
    return "\n".join(lines)


def _recommendation(plan: PlannedShape | None, costs: Costs) -> str:
    if plan is None:
        return "nothing was accepted: no tree would pay"
    shape, plain_s = plan.shape, costs.target(1)
    return (
        f"least time per token: {shape.num_nodes} nodes, depth {shape.depth}, "
        f"{plan.expected_tokens:.2f} tokens a step, {1000 * plan.token_s:.2f} ms a "
        f"token; plain decoding {1000 * plain_s:.2f} ms, expected speed-up "
        f"{plain_s / plan.token_s:.2f}x"
    )
