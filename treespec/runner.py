"""From a job to a run folder: checks, models, two decodes per prompt, the verdict.

Knows no Hydra: whoever has a ``Job`` can run it. What needs no weights is checked
first; the run folder appears when decoding begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from treespec.environment import describe_machine
from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json
from treespec.job import Job
from treespec.loaded_models import LoadedModels, free_memory
from treespec.measure import Measurement, measure
from treespec.metrics import Summary
from treespec.neighbours import Neighbours, beside
from treespec.outcome import PromptOutcome
from treespec.pipes import say
from treespec.preparing import check, devices, prepare, ready_baseline, with_costs
from treespec.sinks.base import RunInfo, recording, status_of
from treespec.sinks.damage import damage
from treespec.sinks.run_folder import (
    SUMMARY,
    RunDoneError,
    RunFolderSink,
    is_done,
    reopen,
)
from treespec.sinks.terminal import render
from treespec.untimed import with_neighbours


class LosslessViolationError(RuntimeError):
    """A text that should be the target's own is not, by more than numerical noise."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What became of a job.

    Attributes:
        folder: Where its files are.
        skipped: Whether it was finished before.
        summary: Its numbers.
    """

    folder: Path
    skipped: bool
    summary: Summary


def run(job: Job, models: LoadedModels | None = None) -> RunReport:
    """Run a job, or find that it is done.

    Args:
        job: The job.
        models: What the jobs before it left in memory, and this one leaves for the
            next; ``None`` loads what it needs and keeps nothing.

    Raises:
        TreespecError: The job cannot work; if before decoding, nothing was written.
        LosslessViolationError: The run is complete, and its texts are not lossless.
    """
    if _is_finished(job):
        return _skip(job.folder)
    models = LoadedModels() if models is None else models
    try:
        return _run(job, models)
    except RunDoneError:
        return _skip(job.folder)
    except (TreespecError, LosslessViolationError):
        raise
    except BaseException:  # out of memory, say: the next job begins with all of it
        models.clear()
        raise
    finally:
        free_memory()


def _run(job: Job, models: LoadedModels) -> RunReport:
    check(job)
    warnings = [quality.note() for quality in job.measures]
    for note in (*job.notes(), *filter(None, warnings)):
        say(f"note: {note}")
    with beside(devices(job)) as neighbours:
        return _decode(job, models, neighbours)


def _decode(job: Job, models: LoadedModels, neighbours: Neighbours) -> RunReport:
    try:
        prepared = with_costs(job, prepare(job, models), neighbours)
        baseline = ready_baseline(job, prepared.decoder)
    except TreespecError:
        raise
    except Exception as error:  # out of memory, say: leave a record of it
        _record_failure(job, error, neighbours)
        raise
    settings, tasks = job.settings, prepared.tasks
    environment = {**prepared.environment, "baseline": baseline.name}
    info = _run_info(job, environment, neighbours)
    num_turns = sum(len(prompt.turns) for prompt in job.prompts)
    unit = "turn" if num_turns > len(tasks) else "prompt"
    bar = tqdm(total=num_turns, desc="getting ready", unit=unit)
    with recording(job.sinks, info) as record, bar:
        progress = _Progress(bar, info.is_timed)

        def take(outcome: PromptOutcome) -> None:
            record.prompt(outcome)
            progress.show(outcome)

        measurement = Measurement(
            sampling=job.sampling,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            stop=tuple(settings.stop),
            warmup=settings.warmup,
            measures=job.measures,
            repeats=settings.repeats,
        )
        measured = measure(
            prepared.decoder, tasks, measurement, take, progress.say, baseline
        )
        summary = with_neighbours(measured, neighbours.count())
        bar.close()
        record.summary = summary
        _check_verdict(summary)
    return RunReport(job.folder, skipped=False, summary=summary)


def _run_info(
    job: Job, environment: Mapping[str, Any], neighbours: Neighbours
) -> RunInfo:
    lossless = "lossless" if job.strategies.acceptance.lossless else "lossy"
    device = environment.get("models", {}).get("target", {}).get("device")
    return RunInfo(
        run_key=job.run_key,
        sweep_name=job.settings.sweep_name,
        folder=job.folder,
        config=job.config,
        environment={**describe_machine(), **environment},
        tags=(
            lossless,
            type(job.strategies.policy).__name__,
            str(job.config["dataset"]["_target_"]).rpartition(".")[2],
            *([] if device is None else [str(device)]),
        ),
        is_timed=neighbours.is_alone,
    )


def _record_failure(job: Job, error: Exception, neighbours: Neighbours) -> None:
    """Leave a run folder that says what went wrong before decoding.

    A finished run of the same key stays as it is, and what stands in the way of the
    record must not take the place of the error.
    """
    folder = RunFolderSink(overwrite=False)
    with suppress(TreespecError):
        folder.open(_run_info(job, {}, neighbours))
        folder.close(None, status_of(error))


def _check_verdict(summary: Summary) -> None:
    lossless = summary["lossless"]
    if lossless["violations"]:
        raise LosslessViolationError(
            f"{lossless['violations']} of {lossless['checked']} texts are not what the "
            "target would have written (lossless: violation in prompts.jsonl)"
        )


def _is_finished(job: Job) -> bool:
    """Return whether there is nothing to do; a finished run that broke is to be redone.

    Raises:
        TreespecError: Another process is at it, or the disk refuses.
    """
    if job.settings.force or not is_done(job.folder):
        return False
    broken = damage(job.folder)
    if broken is None:
        return True
    say(f"note: this run was finished, but its files broke: {broken}; it is redone")
    reopen(job.folder)
    return False


def _skip(folder: Path) -> RunReport:
    """Show what a finished run found."""
    way_out = "the run is marked as done; use force=true to run it again"
    summary = read_json(folder / SUMMARY, way_out)
    try:
        table = render(summary)
    except MALFORMED as error:
        raise TreespecError(
            f"{folder / SUMMARY}: is no summary ({type(error).__name__}: {error}); "
            f"{way_out}"
        ) from error
    print(f"\n{table}\n")
    print(f"This run was finished before: {folder}")
    print("Nothing was decoded. Use force=true to run it again.", flush=True)
    return RunReport(folder, skipped=True, summary=summary)


class _Progress:
    """What the bar tells of the prompts so far."""

    def __init__(self, bar: tqdm[Any], is_timed: Callable[[], bool]) -> None:
        self._bar, self._is_timed = bar, is_timed
        self._baseline_s = self._speculative_s = 0.0

    def say(self, what: str) -> None:
        """Name what is being done."""
        self._bar.set_description(what)

    def show(self, outcome: PromptOutcome) -> None:
        """Count a prompt and show the speed-up of all so far."""
        self._baseline_s += outcome.baseline.decode_s
        self._speculative_s += outcome.speculative.decode_s
        if not self._is_timed():
            self._bar.set_postfix_str("not timed: other jobs run beside it")
        elif self._speculative_s > 0:
            ratio = self._baseline_s / self._speculative_s
            self._bar.set_postfix_str(f"speed-up so far {ratio:.2f}x")
        self._bar.update()
