"""Controllers on texts that change their mind, and the regret to the best constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pandas as pd

import rules
from drawing import missing_notes
from engine import Answer, Measured, Study
from paired import (
    Estimate,
    comparable,
    estimate,
    verdict,
)
from treespec.analysis.chart import Chart, Panel, Points
from treespec.analysis.look import NUM_STYLES
from treespec.errors import TreespecError
from treespec.outcome import PromptOutcome
from treespec.sinks.reader import Run
from treespec.stats import Floats
from treespec.types import GenerationResult

_CONSTANT = "constant_"
ALL, EASY, HARD = "all", "easy", "hard"


@dataclass(frozen=True, slots=True)
class Blocks:
    """The texts cut into blocks, the same ones in every job.

    Attributes:
        seconds: Job -> plain and own seconds of each block.  # [B, 2]
        is_easy: Of which blocks the drafts of the judging job were mostly accepted.
    """

    seconds: dict[str, Floats]
    is_easy: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def of(self, job: str, part: str) -> Floats:
        """Return a job's rows for all, the easy or the hard blocks."""
        rows = self.seconds[job]
        return rows if part == ALL else rows[self.is_easy == (part == EASY)]

    def speedup(self, job: str, part: str = ALL) -> Estimate:
        """Return plain over own seconds."""
        return estimate(self.of(job, part), lambda s: s[..., 0] / s[..., 1])

    def regret(self, job: str, best: str, part: str = ALL) -> Estimate:
        """Return the speed-up of another job over this one's, less 1; paired."""
        if job == best:
            return Estimate(0.0)
        rows = np.hstack([self.of(job, part), self.of(best, part)])
        return estimate(
            rows, lambda s: (s[..., 2] / s[..., 3]) / (s[..., 0] / s[..., 1]) - 1
        )


def answer(measured: Measured) -> Answer:
    """Return what controllers lose to the best constant, and how depth went."""
    blocks = _blocks(measured)
    constants = [job for job in blocks.seconds if job.startswith(_CONSTANT)]
    others = [job for job in blocks.seconds if job not in constants]
    if not constants:
        raise TreespecError("there is no answer without a constant controller")
    best = max(constants, key=lambda job: blocks.speedup(job).value)
    worst = min(constants, key=lambda job: blocks.speedup(job).value)
    frame = _frame(measured, blocks, [*constants, *others], best)
    charts = {"depth": _depth_chart(measured), "regret": _regret_chart(blocks, best)}
    return Answer(
        _summary(blocks, best, others),
        _text(measured, blocks, best, worst, others),
        {"Controllers": frame},
        charts,
    )


def _blocks(measured: Measured) -> Blocks:
    size, ease_by = measured.settings["block"], measured.settings["ease_by"]
    jobs = list(measured.runs)
    found = dict(
        zip(jobs, comparable([measured.runs[job] for job in jobs]), strict=True)
    )
    judge = found.get(ease_by) or next(iter(found.values()))
    seconds: dict[str, list[list[float]]] = {job: [] for job in jobs}
    shares: list[float] = []
    for place, judged in enumerate(judge):
        rows = {job: _seconds_by_block(found[job][place], size) for job in jobs}
        # A tie between two tokens may make texts differ, in length as well.
        accepted = _accepted_by_block(judged, size)
        num_blocks = min(len(accepted), *map(len, rows.values()))
        shares += accepted[:num_blocks]
        for job in jobs:
            seconds[job] += rows[job][:num_blocks]
    if not shares:
        raise TreespecError("there is no answer, as no text was decoded by all jobs")
    is_easy = np.array([share >= measured.settings["easy_from"] for share in shares])
    return Blocks({job: np.array(rows) for job, rows in seconds.items()}, is_easy)


def _seconds_by_block(outcome: PromptOutcome, size: int) -> list[list[float]]:
    """Return plain and own seconds for each block of decoded tokens.

    Tokens of one step arrive together; each gets its share of the step, so that a block
    that ends inside of it does not pay for what comes after.
    """
    sides = [_token_s(outcome.baseline), _token_s(outcome.speculative)]
    num_tokens = min(map(len, sides))
    return [
        [sum(side[start : start + size]) for side in sides]
        for start in range(0, num_tokens, size)
    ]


def _token_s(result: GenerationResult) -> list[float]:
    return [
        step.step_s / step.num_committed
        for step in result.steps
        for _ in range(step.num_committed)
    ]


def _accepted_by_block(outcome: PromptOutcome, size: int) -> list[float]:
    """Return the share of drafted tokens that were accepted in each block."""
    accepted, drafted = [], []
    for step in outcome.speculative.steps:
        each = (
            step.num_accepted / step.num_committed,
            step.num_nodes / step.num_committed,
        )
        accepted += [each[0]] * step.num_committed
        drafted += [each[1]] * step.num_committed
    return [
        sum(accepted[start : start + size]) / max(sum(drafted[start : start + size]), 1)
        for start in range(0, len(accepted), size)
    ]


def _frame(
    measured: Measured, blocks: Blocks, jobs: Sequence[str], best: str
) -> pd.DataFrame:
    rows = []
    for job in jobs:
        summary = measured.runs[job].summary
        rows.append(
            {
                "controller": job,
                **blocks.speedup(job).columns("speed-up"),
                "speed-up, easy": blocks.speedup(job, EASY).value,
                "speed-up, hard": blocks.speedup(job, HARD).value,
                **blocks.regret(job, best).columns(f"regret to {best}"),
                "mean depth": summary["mean_depth"],
                "tokens per step": summary["mean_acceptance_length"],
                "steps without speculation": summary["skip_rate"],
            }
        )
    return pd.DataFrame(rows)


def _summary(blocks: Blocks, best: str, others: Sequence[str]) -> str:
    told = f"Best constant: {best}, {blocks.speedup(best).told('x')}."
    if others:
        first = min(others, key=lambda job: blocks.regret(job, best).value)
        told += (
            f" Of those that adapt {first} came out best, "
            f"{blocks.speedup(first).told('x')}, regret "
            f"{blocks.regret(first, best).percent()}."
        )
    return f"{told} (Intervals are over blocks of few texts, and so too narrow.)"


def _text(
    measured: Measured, blocks: Blocks, best: str, worst: str, others: Sequence[str]
) -> str:
    num_easy, num_all = int(blocks.is_easy.sum()), len(blocks.is_easy)
    parts = [
        f"The texts have {num_all} blocks of {measured.settings['block']} tokens, of "
        f"which {num_easy} are easy: there at least "
        f"{measured.settings['easy_from']:.0%} of the drafts of "
        f"{measured.settings['ease_by']} were accepted. Intervals are over blocks, "
        "paired between jobs; neighbours in a text are alike, so they are narrower "
        "than intervals over many texts would be.",
        f"The best constant is {best} ({blocks.speedup(best).told('x')}), the worst "
        f"{worst} ({blocks.speedup(worst).told('x')}): choosing wrongly costs "
        f"{blocks.regret(worst, best).percent()}. The best one is known only "
        "afterwards, and by the same noise that it is compared with. "
        f"It {verdict(blocks.speedup(best))}.",
    ]
    groups: dict[str, list[str]] = {"beat": [], "tie": [], "lose": []}
    for job in others:
        regret = blocks.regret(job, best)
        word = "lose" if regret.low > 0 else "beat" if regret.high < 0 else "tie"
        groups[word].append(f"{job} ({regret.percent()})")
    said = {
        "beat": "Faster than the best constant",
        "tie": "Not told apart from it",
        "lose": "Slower than it",
    }
    told = [
        f"{said[word]}: {', '.join(jobs)}." for word, jobs in groups.items() if jobs
    ]
    if told:
        parts.append(
            f"{' '.join(told)} (In brackets: seconds lost to it, 95% interval.)"
        )
    return "\n\n".join([*parts, _followed(measured, others)])


def _followed(measured: Measured, others: Sequence[str]) -> str:
    """Tell how deep drafts were where they were accepted, and where they were not."""
    size, easy_from = measured.settings["block"], measured.settings["easy_from"]
    judge = measured.runs.get(measured.settings["ease_by"])
    if judge is None:
        return ""
    parts = []
    for job in others:
        runs = comparable([measured.runs[job], judge])
        depths: dict[bool, list[int]] = {True: [], False: []}
        for own, other in zip(*runs, strict=True):
            shares = _accepted_by_block(other, size)
            for start, depth in _depths(own.speculative):
                share = shares[min(start // size, len(shares) - 1)]
                depths[share >= easy_from].append(depth)
        if depths[True] and depths[False]:
            means = (float(np.mean(depths[easy])) for easy in (True, False))
            parts.append("{} {:.1f} and {:.1f}".format(job, *means))
    if not parts:
        return (
            "The blocks are all easy or all hard, so whether controllers follow a text "
            "that changes cannot be told from these."
        )
    return f"Mean depth of drafts in easy and in hard blocks: {'; '.join(parts)}."


def _depths(result: GenerationResult) -> list[tuple[int, int]]:
    """Return for each step the decoded tokens before it, and the depth of its draft."""
    ends = accumulate(step.num_committed for step in result.steps)
    starts = [0, *ends][:-1]
    depths = [step.depth for step in result.steps]
    return list(zip(starts, depths, strict=True))


def _depth_chart(measured: Measured) -> Chart:
    """Return the depth of every step's draft along the first text."""
    jobs = list(measured.runs)
    adapting = [job for job in jobs if not job.startswith(_CONSTANT)]
    shown = adapting[:NUM_STYLES]
    lines = [_steps_line("", measured.runs[job], n) for n, job in enumerate(shown)]
    deepest = max((depth for line in lines for depth in line.y), default=0.0)
    panels = [
        Panel(
            "Decoded tokens",
            f"{job}:\ndepth",
            (lines[style],),
            y_range=(-0.3, deepest + 0.5),
            height=0.45,
        )
        for style, job in enumerate(shown)
    ]
    judge = measured.runs.get(measured.settings["ease_by"])
    if judge is not None:
        panels.append(_ease_panel(judge, measured.settings["block"]))
    rows = [
        {"job": job, "tokens": start, "depth": depth}
        for job in shown
        for start, depth in _depths(measured.runs[job].outcomes[0].speculative)
    ]
    first = next(iter(measured.runs.values())).outcomes[0].id
    return Chart(
        f"Depth of drafts along the text {first}",
        tuple(panels),
        missing_notes(measured.missing),
        pd.DataFrame(rows),
    )


def _steps_line(name: str, run: Run, style: int) -> Points:
    places = _depths(run.outcomes[0].speculative)
    return Points(
        name=name,
        x=tuple(float(start) for start, _ in places),
        y=tuple(float(depth) for _, depth in places),
        join="steps",
        style=style,
        mark="none",
    )


def _ease_panel(run: Run, size: int) -> Panel:
    shares = _accepted_by_block(run.outcomes[0], size)
    line = Points(
        name="",
        x=tuple(float(place * size) for place in range(len(shares))),
        y=tuple(shares),
        join="steps",
        style=6,
        mark="none",
    )
    return Panel(
        "Decoded tokens",
        "drafts\naccepted",
        (line,),
        y_range=(0.0, 1.03),
        height=0.45,
    )


def _regret_chart(blocks: Blocks, best: str) -> Chart:
    jobs = [job for job in blocks.seconds if job != best]
    found = {job: blocks.regret(job, best) for job in jobs}
    marks = [
        Points(
            name="",
            x=tuple(100 * found[job].value for job in jobs),
            y=tuple(map(float, range(len(jobs)))),
            low=tuple(100 * found[job].low for job in jobs),
            high=tuple(100 * found[job].high for job in jobs),
            join="none",
        )
    ]
    panel = Panel(
        f"Seconds lost to {best} (%, 95% interval; below 0: faster)",
        "Controller",
        tuple(marks),
        categories=tuple(jobs),
    )
    frame = pd.DataFrame({"job": j, **found[j].columns("regret")} for j in jobs)
    return Chart(
        f"Regret to the best constant, {best} (n = {len(blocks.is_easy)} blocks)",
        (panel,) if jobs else (),
        (),
        frame,
    )


STUDY = Study(
    answer=answer,
    rules={"block": rules.whole, "ease_by": rules.job, "easy_from": rules.number(0, 1)},
)
