"""Runs of one sweep folder, sorted into a planner and what it is compared with.

Only runs of the same models, prompts and settings on the same machine compare: what may
differ are the five strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from treespec.errors import TreespecError
from treespec.metrics import PLAIN as BASELINE
from treespec.outcome import PromptOutcome
from treespec.sinks.reader import Run, read_run
from treespec.sinks.run_folder import STATUS, is_done
from treespec.sinks.wandb import flatten
from treespec.sweep_state import run_state
from treespec.untimed import NUM_JOBS_BESIDE

Kind = Literal["planner", "fixed", "adaptive"]

STRATEGIES = ("drafter", "policy", "controller", "acceptance", "verifier")
"""Groups of the configuration in which runs of a comparison may differ."""
_ELSEWHERE = ("sink", "wandb", "output_root", "sweep_name", "force", "trace")
_MACHINE = ("cpu", "cuda", "num_threads", "models.")
PLAIN = "no speculation"


@dataclass(frozen=True, slots=True)
class Contender:
    """One strategy over all prompts.

    Attributes:
        run_key: Its run.
        name: What tells it from the others: classes and the keys that differ.
        kind: ``planner``; ``fixed`` if its budget is the same for all steps; or
            ``adaptive``.
        outcomes: All prompts, in the order of the dataset.
    """

    run_key: str
    name: str
    kind: Kind
    outcomes: tuple[PromptOutcome, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep folder, read and found to compare.

    Attributes:
        folder: Where it is.
        planner: The strategy in question.
        planner_config: The configuration of its run.
        planner_environment: What that ran on.
        fixed: What it is compared with; plain decoding, from the planner's own run, is
            the last.
        adaptive: The other runs, neither fixed nor in question.
        left_out: Runs that are not finished or cannot be read, and why.
    """

    folder: Path
    planner: Contender
    planner_config: Mapping[str, Any]
    planner_environment: Mapping[str, Any]
    fixed: tuple[Contender, ...]
    adaptive: tuple[Contender, ...]
    left_out: tuple[str, ...]

    @property
    def categories(self) -> list[str]:
        """Categories of the prompts, in their order."""
        return list(dict.fromkeys(o.category for o in self.planner.outcomes))


def read_sweep(folder: Path, planner: str | None = None) -> Sweep:
    """Return the runs of a sweep folder.

    Args:
        folder: Holds one folder per run.
        planner: Run key of the strategy in question; ``None`` for the one run whose
            policy is a planner.

    Raises:
        TreespecError: The folder has no finished runs, no planner, several of them or
            nothing to compare with; or runs differ in more than strategies.
    """
    runs, left_out = _read_runs(folder)
    if not runs:
        raise TreespecError(
            f"{folder}: no finished runs{_why(left_out)}; give the folder of a sweep, "
            "such as outputs/NAME"
        )
    for run in runs:
        _check_timed(run)
    chosen = _chosen(folder, runs, planner)
    for run in runs:
        _check_alike(folder, run, chosen)
    names = _names([run.config for run in runs])
    contenders = [
        Contender(run.folder.name, name, _kind(run.config), run.outcomes)
        for run, name in zip(runs, names, strict=True)
    ]
    in_question = contenders[runs.index(chosen)]
    others = [other for other in contenders if other is not in_question]
    fixed = [other for other in others if other.kind == "fixed"]
    if not fixed:
        raise TreespecError(
            f"{folder}: nothing to compare {in_question.run_key} with: no finished run "
            "has controller=constant and a policy that is no planner; sweep such ones"
        )
    return Sweep(
        folder=folder,
        planner=in_question,
        planner_config=chosen.config,
        planner_environment=chosen.environment,
        fixed=(*fixed, _plain(in_question)),
        adaptive=tuple(other for other in others if other.kind != "fixed"),
        left_out=tuple(left_out),
    )


def _read_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the finished runs, and of the others, why they are none."""
    if not folder.is_dir():
        raise TreespecError(f"{folder}: there is no such folder; give that of a sweep")
    runs: list[Run] = []
    left_out: list[str] = []
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        if not is_done(path):
            if (path / STATUS).exists():
                state, message = run_state(path)
                left_out.append(f"{path.name}: {state}: {message}")
            continue
        try:
            runs.append(read_run(path))
        except TreespecError as error:
            left_out.append(f"{path.name}: {error}")
    return runs, left_out


def _why(left_out: Sequence[str]) -> str:
    return f" ({'; '.join(left_out)})" if left_out else ""


def _chosen(folder: Path, runs: Sequence[Run], planner: str | None) -> Run:
    keys = [run.folder.name for run in runs]
    if planner is not None:
        if planner not in keys:
            raise TreespecError(
                f"planner={planner} is no finished run of {folder}; finished are "
                f"{', '.join(keys)}"
            )
        return runs[keys.index(planner)]
    planners = [run for run in runs if _kind(run.config) == "planner"]
    if len(planners) == 1:
        return planners[0]
    if not planners:
        raise TreespecError(
            f"{folder}: no finished run has a planner for its policy; add one to the "
            f"sweep, or choose the run in question with planner=RUN, of "
            f"{', '.join(keys)}"
        )
    found = ", ".join(run.folder.name for run in planners)
    raise TreespecError(
        f"{folder}: {len(planners)} runs have a planner: choose with planner=RUN, of "
        f"{found}"
    )


def _kind(config: Mapping[str, Any]) -> Kind:
    if _class(config, "policy").endswith("Planner"):
        return "planner"
    return "fixed" if _class(config, "controller") == "Constant" else "adaptive"


def _class(config: Mapping[str, Any], group: str) -> str:
    part = config.get(group)
    return _class_name(part.get("_target_", "") if isinstance(part, Mapping) else "")


def _check_timed(run: Run) -> None:
    num_jobs = run.summary.get(NUM_JOBS_BESIDE)
    if num_jobs:
        raise TreespecError(
            f"{run.folder}: {num_jobs} other jobs ran beside it on the same device, so "
            "its times do not compare; run it again alone, with force=true"
        )


def _check_alike(folder: Path, run: Run, chosen: Run) -> None:
    """Refuse a run that differs in more than strategies."""
    key, other = run.folder.name, chosen.folder.name
    if not run.summary["lossless"]["rule_is_lossless"]:
        raise TreespecError(
            f"{folder}: the rule of {key} is lossy: its time compares with that of no "
            "lossless run; move it out of the folder"
        )
    if run.summary["baseline"] != BASELINE:
        raise TreespecError(
            f"{folder}: {key} has baseline={run.summary['baseline']}, and regret takes "
            f"the baseline for plain decoding; sweep with baseline={BASELINE}"
        )
    if run.config.get("max_concurrent", 1) != 1:
        raise TreespecError(
            f"{folder}: {key} decoded several prompts at once, which share their time; "
            "sweep with max_concurrent=1"
        )
    if _prompts(run) != _prompts(chosen):
        raise TreespecError(
            f"{folder}: {key} and {other} decoded different prompts; move one elsewhere"
        )
    mine, its = _settings(run), _settings(chosen)
    machine, its_machine = _machine(run), _machine(chosen)
    names = [n for n in {**its, **mine} if mine.get(n) != its.get(n)]
    # A model that only one of them has loaded is part of its strategy.
    both = machine.keys() & its_machine.keys()
    names += sorted(n for n in both if machine[n] != its_machine[n])
    if names:
        values = [
            {**settings, **where}.get(names[0])
            for settings, where in ((mine, machine), (its, its_machine))
        ]
        raise TreespecError(
            f"{folder}: {key} and {other} differ in {names[0]} ({values[0]!r} and "
            f"{values[1]!r}): only runs of the same models and settings on the same "
            "machine compare; move one elsewhere"
        )


def _prompts(run: Run) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(o.id, o.category, o.speculative.prompt_tokens) for o in run.outcomes]


def _settings(run: Run) -> dict[str, Any]:
    own = {*STRATEGIES, *_ELSEWHERE}
    return flatten({k: v for k, v in run.config.items() if k not in own})


def _machine(run: Run) -> dict[str, Any]:
    """Return what a run's speed depends on besides its configuration."""
    return {
        name: value
        for name, value in flatten(run.environment).items()
        if name.startswith(_MACHINE)
    }


def _names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each strategy by its classes and keys that not all of them share."""
    flat = [
        flatten({group: config.get(group, {}) for group in STRATEGIES})
        for config in configs
    ]
    keys = dict.fromkeys(key for one in flat for key in one)
    # A key that only one class has says nothing that its name does not.
    values = {key: {str(one[key]) for one in flat if key in one} for key in keys}
    differing = [key for key in keys if len(values[key]) > 1]
    return [
        " ".join(_word(key, one[key]) for key in differing if key in one) or "the same"
        for one in flat
    ]


def _word(key: str, value: Any) -> str:
    """Return a class by its name, and what is none with the last word of its key."""
    name = key.rpartition(".")[2]
    if name == "_target_":
        return _class_name(value)
    members = value if isinstance(value, list) else [value]
    words = [
        _class_name(member["_target_"])
        if isinstance(member, Mapping) and "_target_" in member
        else str(member)
        for member in members
    ]
    return f"{name}={'+'.join(words)}"


def _class_name(target: object) -> str:
    return str(target).rpartition(".")[2]


def _plain(planner: Contender) -> Contender:
    """Return plain decoding, which the planner's own run did in turns with it."""
    outcomes = tuple(replace(o, speculative=o.baseline) for o in planner.outcomes)
    return Contender(planner.run_key, PLAIN, "fixed", outcomes)
