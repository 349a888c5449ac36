"""Studies: a question, the jobs that answer it, and the answer made of their records.

A study is ``NAME.yaml`` (question, jobs, settings) and ``NAME.py``, whose ``STUDY``
makes the answer. Jobs are those of the ``treespec`` command; what is done is kept, so a
study that was stopped goes on where it was, and one that fails does not end the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from rules import PREFIX, Rule, check_settings
from treespec.analysis import Chart, Results, load_results
from treespec.compose import compose_job
from treespec.errors import TreespecError, unknown_name
from treespec.job import Job
from treespec.loaded_models import LoadedModels
from treespec.pipes import say
from treespec.runner import LosslessViolationError, run
from treespec.sinks.reader import Run, read_run
from treespec.sweeping import FAILED, INTERRUPTED, OK, exit_code
from treespec.untimed import NUM_JOBS_BESIDE

SWEEP = "studies"
"""Folder, inside of ``output_root``, of all studies."""
_TABLES = ("runs", "prompts", "steps", "nodes", "settings")


@dataclass(frozen=True, slots=True)
class Measured:
    """What an answer is made of.

    Attributes:
        settings: The study's own numbers, such as prices and margins.
        runs: By job, what was recorded; jobs that failed are missing.
        missing: By job, why it failed.
        results: The runs as tables, in which they have the names of their jobs.
        folder: The study's folder.
        fast: Whether this is the fast form, which shows that all runs, and no more.
    """

    settings: Mapping[str, Any]
    runs: Mapping[str, Run]
    missing: Mapping[str, str]
    results: Results
    folder: Path
    fast: bool = False

    def run(self, job: str) -> Run:
        """Return the run of a job without which there is no answer.

        Raises:
            TreespecError: The job failed.
        """
        if job not in self.runs:
            why = self.missing.get(job, "the study has no such job")
            raise TreespecError(f"there is no answer without the job {job}: {why}")
        return self.runs[job]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a study found.

    Attributes:
        summary: One line, with numbers and intervals.
        text: A few paragraphs of Markdown, made from the numbers.
        tables: By title; columns have their units in their names.
        charts: By a short name, which ends the file's.
    """

    summary: str
    text: str
    tables: Mapping[str, pd.DataFrame]
    charts: Mapping[str, Chart]


@dataclass(frozen=True, slots=True)
class Study:
    """How records become an answer.

    Attributes:
        answer: Makes it.
        rules: What each of its settings must be.
    """

    answer: Callable[[Measured], Answer]
    rules: Mapping[str, Rule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``NAME.yaml`` says.

    Attributes:
        question: What the study asks.
        overrides: What all jobs have in common.
        jobs: By name, what each has besides.
        fast: What the fast form has besides.
        settings: The study's own numbers.
    """

    question: str
    overrides: Sequence[str]
    jobs: Mapping[str, Sequence[str]]
    fast: Sequence[str]
    settings: Mapping[str, Any]

    def job_overrides(self, job: str, asked: Asked) -> list[str]:
        """Return everything that a job is composed of; what was typed comes last."""
        fast = self.fast if asked.fast else ()
        sweep = f"sweep_name={SWEEP}/{asked.name}"
        return [*self.overrides, *self.jobs[job], *fast, *asked.overrides, sweep]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed.

    Attributes:
        name: The study.
        fast: Whether to run its fast form.
        overrides: Changes to all jobs.
        settings: Changes to the study's settings, by dotted name.
    """

    name: str
    fast: bool = False
    overrides: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """A study that ran.

    Attributes:
        asked: What was typed.
        plan: What it was to do, with the settings that were typed.
        measured: What there is.
        answer: What it found; ``None`` if too much failed.
        code: The exit code: the worst of all jobs'.
    """

    asked: Asked
    plan: Plan
    measured: Measured
    answer: Answer | None
    code: int


def study_names(home: Path) -> list[str]:
    """Return the names of all studies in a folder."""
    return sorted(path.stem for path in home.glob("*.yaml"))


def read_plan(home: Path, name: str) -> Plan:
    """Return what a study's YAML says.

    Raises:
        TreespecError: There is no such study, or a key is missing, unknown or wrong.
    """
    names = study_names(home)
    if name not in names:
        raise unknown_name("study", name, names)
    path = home / f"{name}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise TreespecError(f"{path.name}: not YAML: {first}") from error
    known = [key.name for key in fields(Plan)]
    if not isinstance(content, dict) or not isinstance(content.get("jobs"), dict):
        raise TreespecError(f"{path.name}: must have the keys {', '.join(known)}")
    for key in content:
        if key not in known:
            raise unknown_name(f"key of {path.name}", str(key), known)
    if not isinstance(content.get("question"), str) or not content["jobs"]:
        raise TreespecError(f"{path.name}: needs a question, and jobs: a list for each")
    lists = {key: content.get(key, []) for key in ("overrides", "fast")}
    for key, value in {**lists, **content["jobs"]}.items():
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise TreespecError(
                f"{path.name}: {key} must be a list of overrides, got {value!r}"
            )
    return Plan(
        question=" ".join(content["question"].split()),
        jobs=content["jobs"],
        settings=content.get("settings") or {},
        **lists,
    )


def parse(name: str, arguments: Iterable[str], *, fast: bool = False) -> Asked:
    """Return what was typed after a study's name.

    Raises:
        TreespecError: An argument is no ``key=value``.
    """
    overrides, settings = [], {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise TreespecError(
                f"cannot read {argument!r}: write --fast, --write or key=value"
            )
        if key.startswith(PREFIX):
            settings[key.removeprefix(PREFIX)] = _value(key, value)
        else:
            overrides.append(argument)
    return Asked(name, fast, tuple(overrides), settings)


def run_study(home: Path, asked: Asked) -> Finished:
    """Run what is not done of a study's jobs, and answer its question.

    Raises:
        TreespecError: A job cannot be composed, or a setting is wrong; then none was
            run.
    """
    plan = read_plan(home, asked.name)
    plan = replace(plan, settings=_changed(plan.settings, asked.settings))
    study = _study(asked.name)
    check_settings(plan.settings, study.rules, plan.jobs)
    jobs = _compose(plan, asked)
    models = LoadedModels()
    runs: dict[str, Run] = {}
    missing: dict[str, str] = {}
    code = OK
    for number, (name, job) in enumerate(jobs.items(), start=1):
        print(f"\n[{number} of {len(jobs)}] {name}", flush=True)
        end = attempt(job, models)
        found = _usable(job) if end.code == OK else end.message
        if isinstance(found, Run):
            runs[name] = found
        else:
            code = max(code, end.code or FAILED)
            say(f"error: {name}: {found}")
            missing[name] = found
    folder = next(iter(jobs.values())).folder.parent
    if not runs:
        say("error: there is no answer, as every job failed")
        empty = Measured(plan.settings, {}, missing, _no_results(), folder, asked.fast)
        return Finished(asked, plan, empty, None, code)
    measured = Measured(
        plan.settings, runs, missing, named_results(runs), folder, asked.fast
    )
    try:
        answer = study.answer(measured)
    except TreespecError as error:
        say(f"error: {error}")
        return Finished(asked, plan, measured, None, max(code, FAILED))
    return Finished(asked, plan, measured, answer, code)


def _usable(job: Job) -> Run | str:
    """Return what a job recorded, or why no answer can be made of it."""
    try:
        found = read_run(job.folder)
    except TreespecError as error:
        return f"{error}; run it again with force=true"
    if found.summary.get(NUM_JOBS_BESIDE):
        return (
            "other jobs ran beside it on its device, so its times say nothing; run it "
            "again alone, with force=true"
        )
    return found


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: its exit code, and why it failed in one line."""

    code: int
    message: str = ""


def attempt(job: Job, models: LoadedModels) -> JobEnd:
    """Run a job, or find it done; whatever it raises but an interrupt is its end."""
    try:
        run(job, models)
    except Exception as error:  # one job must not take the others with it
        told = isinstance(error, TreespecError | LosslessViolationError)
        reason = " ".join(str(error).split())
        name = "" if told else f"{type(error).__name__}: "
        return JobEnd(exit_code(error), f"{name}{reason}")
    return JobEnd(OK)


def named_results(runs: Mapping[str, Run]) -> Results:
    """Return the tables of runs, each called by its job."""
    results = load_results(*(run.folder for run in runs.values()))
    names = dict(zip(results.runs["run"], runs, strict=True))
    renamed = {
        table: getattr(results, table).assign(
            run=lambda frame: frame["run"].map(names).astype(frame["run"].dtype)
        )
        for table in _TABLES
    }
    return Results(**renamed)


def interrupted() -> int:
    """Tell that the user ended a study; return the exit code."""
    say("interrupted: jobs that are done are kept; the same command goes on from there")
    return INTERRUPTED


def _study(name: str) -> Study:
    study = getattr(import_module(name), "STUDY", None)
    if not isinstance(study, Study):
        raise TreespecError(f"{name}.py must define STUDY = Study(answer=...)")
    return study


def _compose(plan: Plan, asked: Asked) -> dict[str, Job]:
    """Return all jobs before any of them runs: a mistyped key costs no time."""
    jobs: dict[str, Job] = {}
    keys: dict[str, str] = {}
    for name in plan.jobs:
        job = jobs[name] = compose_job(plan.job_overrides(name, asked))
        other = keys.setdefault(job.run_key, name)
        if other != name:
            raise TreespecError(
                f"the jobs {other} and {name} are one and the same with these "
                "overrides; leave out what makes them equal"
            )
    return jobs


def _changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with some of them replaced, by dotted name.

    Raises:
        TreespecError: There is no such setting.
    """
    changed = {**settings}
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if head not in changed or (rest and not isinstance(changed[head], Mapping)):
            raise unknown_name("setting", PREFIX + name, [PREFIX + k for k in changed])
        changed[head] = _changed(changed[head], {rest: value}) if rest else value
    return changed


def _value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TreespecError(f"{key}: cannot read {text!r}: write a value") from error


def _no_results() -> Results:
    return Results(*(pd.DataFrame() for _ in _TABLES))
