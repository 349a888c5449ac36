"""Acceptance by temperature, top-p and rule; and three proofs that nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

import rules
from again import job_of
from drawing import missing_notes, points
from engine import Answer, Measured, Study
from paired import Estimate, estimate, speedup, tokens_per_step
from treespec.acceptance import AbstractAcceptanceRule
from treespec.analysis.chart import Chart, Panel
from treespec.outcome import PromptOutcome
from treespec.preparing import prepare
from treespec.sinks.reader import Run
from treespec.testing import ConformanceError, check_acceptance_rule, check_decoder
from treespec.types import StepRecord

_CONCURRENT = 8
_FITS, _VACUOUS = "fits", "too few rejections to tell"
_VIOLATION = "are not what the target would have written"


@dataclass(frozen=True, slots=True)
class Mode:
    """A job: a rule under a sampling.

    Attributes:
        job: Its name.
        rule: The first word of its name.
        run: Its run.
        temperature: That of the target.
        top_p: That of the target.
        acceptance: Share of the steps that accepted a node at depth 1.
    """

    job: str
    rule: str
    run: Run
    temperature: float
    top_p: float
    acceptance: Estimate


def answer(measured: Measured) -> Answer:
    """Return acceptance by mode, and what was found of the law."""
    modes = [_mode(job, run) for job, run in measured.runs.items()]
    names = measured.settings["rules"]
    exact = _exact(modes)
    counted = _counted(measured)
    law = _law(measured, modes, exact, counted)
    frames = {
        "Modes": _frame(modes, names),
        "Exact enumeration on toys, by rule": exact,
        "Texts counted against the target's law": counted,
    }
    text = "\n\n".join(
        [
            _trend_told(modes, names),
            _top_p_told(modes, names),
            _law_told(modes, exact, counted, law),
        ]
    )
    return Answer(
        _summary(modes, law),
        text,
        frames,
        {"acceptance": _chart(modes, names, frames["Modes"], measured)},
    )


def _mode(job: str, run: Run) -> Mode:
    sampling = run.config["sampling"]
    return Mode(
        job=job,
        rule=job.partition("_")[0],
        run=run,
        temperature=float(sampling["temperature"]),
        top_p=float(sampling["top_p"]),
        acceptance=_first_depth(run),
    )


def _first_depth(run: Run) -> Estimate:
    """Return how many of the steps with a draft accepted a node at depth 1."""
    rows = [
        [float(sum(step.num_accepted > 0 for step in steps)), float(len(steps))]
        for outcome in run.outcomes
        if (steps := _judged_steps(outcome))
    ]
    columns = np.array(rows).reshape(-1, 2)
    return estimate(columns, lambda sums: sums[..., 0] / sums[..., 1])


def _judged_steps(outcome: PromptOutcome) -> list[StepRecord]:
    return [
        step
        for step in outcome.speculative.steps
        if step.num_nodes and (step.num_accepted or step.next_kind is not None)
    ]


def _frame(modes: Sequence[Mode], names: dict[str, str]) -> pd.DataFrame:
    rows = []
    for mode in modes:
        lossless = mode.run.summary["lossless"]
        rows.append(
            {
                "rule": names.get(mode.rule, mode.rule),
                "temperature": mode.temperature,
                "top-p": mode.top_p,
                **mode.acceptance.columns("first draft accepted"),
                **tokens_per_step(mode.run).columns("tokens per step"),
                **speedup(mode.run).columns("speed-up"),
                "lossless": "yes" if lossless["rule_is_lossless"] else "no",
                "texts compared": lossless["checked"],
                "identical or tied": lossless["identical"] + lossless["ties"],
                "violations": lossless["violations"],
            }
        )
    return pd.DataFrame(rows)


def _exact(modes: Sequence[Mode]) -> pd.DataFrame:
    """Return the conformance kit's verdict on each rule of the runs."""
    rows = []
    for name, rule in {m.rule: _rule(m.run) for m in modes}.items():
        try:
            check_acceptance_rule(rule)
            verdict = "lossless" if rule.lossless else "keeps its contract; lossy"
        except ConformanceError as error:
            verdict = str(error).splitlines()[0]
        rows.append({"rule": type(rule).__name__, "jobs": name, "verdict": verdict})
    return pd.DataFrame(rows)


def _rule(run: Run) -> AbstractAcceptanceRule:
    return job_of(run).strategies.acceptance


def _counted(measured: Measured) -> pd.DataFrame:
    """Return how texts of the real decoders fit the target's law."""
    settings, rows = measured.settings["law_check"], []
    for name in settings["jobs"]:
        if name not in measured.runs:
            continue
        job = job_of(measured.runs[name])
        prepared = prepare(job)
        decoder = replace(prepared.decoder, max_concurrent=_CONCURRENT)
        try:
            report = check_decoder(
                decoder,
                list(prepared.tasks[0].tokens[-settings["num_prompt_tokens"] :]),
                job.sampling,
                num_tokens=settings["num_tokens"],
                num_texts=settings["num_texts"],
                num_batches=1,
            )
        except ConformanceError as error:
            rows.append({"job": name, "verdict": str(error).splitlines()[0]})
            continue
        rows.append(
            {
                "job": name,
                "verdict": _VACUOUS if report.vacuous else _FITS,
                "texts": report.num_texts,
                "cells": report.num_cells,
                "p-value": report.p_value,
                "fails below": report.threshold,
                "rounds with a rejection": report.recovered_share,
            }
        )
    return pd.DataFrame(rows)


def _of_rule(modes: Sequence[Mode], rule: str) -> list[Mode]:
    """Return a rule's modes without top-p, by temperature."""
    found = [mode for mode in modes if mode.rule == rule and mode.top_p == 1]
    return sorted(found, key=lambda mode: mode.temperature)


def _rules(modes: Sequence[Mode]) -> list[str]:
    return list(dict.fromkeys(mode.rule for mode in modes))


def _trend_told(modes: Sequence[Mode], names: dict[str, str]) -> str:
    parts = []
    for rule in _rules(modes):
        found = _of_rule(modes, rule)
        told = ", ".join(
            f"{mode.acceptance.percent()} at {mode.temperature:g}" for mode in found
        )
        word = ""
        if len(found) > 1:
            word = f" ({_change(found[0].acceptance, found[-1].acceptance)})"
        parts.append(f"- {names.get(rule, rule)}: {told}{word}")
    return (
        "First drafts accepted, by temperature, with intervals over prompts:\n\n"
        + "\n".join(parts)
    )


def _change(first: Estimate, last: Estimate) -> str:
    if last.high < first.low:
        return "falls"
    if last.low > first.high:
        return "rises"
    return "no change is shown"


def _top_p_told(modes: Sequence[Mode], names: dict[str, str]) -> str:
    parts = []
    for mode in modes:
        plain = [
            other
            for other in modes
            if (other.rule, other.temperature, other.top_p)
            == (mode.rule, mode.temperature, 1.0)
        ]
        if mode.top_p < 1 and plain:
            parts.append(
                f"{names.get(mode.rule, mode.rule)}, top-p {mode.top_p:g} at "
                f"{mode.temperature:g}: {mode.acceptance.percent()} instead of "
                f"{plain[0].acceptance.percent()} "
                f"({_change(plain[0].acceptance, mode.acceptance)})"
            )
    return f"With top-p: {'; '.join(parts)}." if parts else ""


def _law(
    measured: Measured,
    modes: Sequence[Mode],
    exact: pd.DataFrame,
    counted: pd.DataFrame,
) -> str:
    """Return what the three checks of the law came to, in a few words.

    A run with a text that is not the target's own has failed, and is not among the
    modes: its reason is among those of the missing jobs.
    """
    wrong = [job for job, why in measured.missing.items() if _VIOLATION in why]
    verdicts = list(counted["verdict"]) if len(counted) else []
    wrong += [job.job for job in modes if job.run.summary["lossless"]["violations"]]
    if (
        wrong
        or any(verdict != "lossless" for verdict in exact["verdict"])
        or any(verdict not in (_FITS, _VACUOUS) for verdict in verdicts)
    ):
        return "a check of the law FAILED"
    whole = not measured.missing and verdicts.count(_FITS) == len(
        measured.settings["law_check"]["jobs"]
    )
    if whole:
        return "every check of the law passed"
    return "no check of the law failed, but not all of them could be made"


def _law_told(
    modes: Sequence[Mode], exact: pd.DataFrame, counted: pd.DataFrame, law: str
) -> str:
    totals = {
        key: sum(mode.run.summary["lossless"][key] for mode in modes)
        for key in ("checked", "identical", "ties", "violations")
    }
    told = (
        f"Whether anything is lost is looked for in three ways: {law}. By enumeration "
        "of all draws on toys, without statistics: "
        + "; ".join(
            f"{row['rule']} {row['verdict']}" for row in exact.to_dict("records")
        )
        + ". In the runs: greedy decoding, and sample and match, which shares its "
        "noise with plain decoding, must write the same text as that; "
        f"{totals['checked']} texts were compared, {totals['identical']} are "
        f"identical, {totals['ties']} part at a tie of rounded numbers, "
        f"{totals['violations']} violate."
    )
    rows = counted.to_dict("records")
    if rows:
        told += (
            " And with the real models, by counting the first tokens of sampled texts: "
            + "; ".join(_count_told(row) for row in rows)
            + ". So few texts would show a gross fault only."
        )
    return told


def _count_told(row: Mapping[Any, Any]) -> str:
    if "p-value" not in row or pd.isna(row["p-value"]):
        return f"{row['job']}: {row['verdict']}"
    return (
        f"{row['job']} {row['verdict']} (p = {row['p-value']:.3f} with "
        f"{row['texts']:.0f} texts in {row['cells']:.0f} cells)"
    )


def _summary(modes: Sequence[Mode], law: str) -> str:
    parts = []
    for rule in _rules(modes):
        found = _of_rule(modes, rule)
        if len(found) > 1:
            first, last = found[0], found[-1]
            parts.append(
                f"{rule} {first.acceptance.percent()} at {first.temperature:g} and "
                f"{last.acceptance.percent()} at {last.temperature:g}"
            )
    return f"First drafts accepted: {'; '.join(parts)}; {law}."


def _chart(
    modes: Sequence[Mode],
    names: dict[str, str],
    frame: pd.DataFrame,
    measured: Measured,
) -> Chart:
    marks = []
    for style, rule in enumerate(_rules(modes)):
        found = _of_rule(modes, rule)
        marks.append(
            points(
                names.get(rule, rule),
                [mode.temperature + 0.01 * style for mode in found],
                [mode.acceptance for mode in found],
                style,
            )
        )
        narrow = [mode for mode in modes if mode.rule == rule and mode.top_p < 1]
        if narrow:
            marks.append(
                points(
                    f"{rule}, top-p {narrow[0].top_p:g}",
                    [mode.temperature + 0.03 + 0.01 * style for mode in narrow],
                    [mode.acceptance for mode in narrow],
                    style,
                    join=False,
                    mark="star",
                )
            )
    panel = Panel(
        "Temperature",
        "First draft accepted (share of steps)",
        tuple(marks),
        y_range=(0.0, 1.03),
    )
    num_prompts = len(next(iter(measured.runs.values())).outcomes)
    return Chart(
        f"Acceptance by temperature and rule (n = {num_prompts} prompts per job)",
        (panel,) if marks else (),
        missing_notes(measured.missing),
        frame,
    )


STUDY = Study(
    answer=answer,
    rules={
        "rules": rules.named(rules.text),
        "law_check": rules.record(
            jobs=rules.many(rules.job),
            num_texts=rules.whole,
            num_tokens=rules.whole,
            num_prompt_tokens=rules.whole,
        ),
    },
)
