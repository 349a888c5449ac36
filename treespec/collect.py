"""A sweep as one table: a row per job, whatever became of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treespec.analysis.folders import LoadedRun, load_folder
from treespec.analysis.schema import RUN_SCHEMA
from treespec.errors import TreespecError
from treespec.sinks.reader import run_folders
from treespec.sinks.run_folder import ENVIRONMENT
from treespec.sweep_log import SWEEP_LOG, SweepLog
from treespec.sweep_state import (
    SweptJob,
    json_if_whole,
    read_jobs,
    render_jobs,
    run_state,
)

TABLE = "sweep.parquet"

_OWN = ("run_key", "overrides", "status", "error")
_USAGE = "write treespec collect SWEEP_FOLDER, such as treespec collect outputs/default"


@dataclass(frozen=True, slots=True)
class CollectedSweep:
    """A sweep, and the table that was made of it.

    Attributes:
        folder: The sweep's folder.
        jobs: Its jobs, and runs in its folder that no sweep planned.
        path: The table, one row per job.
        num_unread: Broken lines of the sweep's log, whose jobs are not known.
    """

    folder: Path
    jobs: tuple[SweptJob, ...]
    path: Path
    num_unread: int = 0

    @property
    def is_done(self) -> bool:
        """Whether every job is, as far as is known."""
        return not self.num_unread and all(job.state == "done" for job in self.jobs)

    def render(self, cwd: str) -> str:
        """Return what became of the jobs, and what to type in ``cwd`` for the rest."""
        lines = [render_jobs(str(self.folder), self.jobs, cwd)]
        if self.num_unread:
            lines.append(
                f"note: {self.num_unread} broken line(s) of {self.folder / SWEEP_LOG}: "
                "jobs that only they name are not listed; give the sweep's own command "
                "again to plan them anew"
            )
        return "\n".join([*lines, str(self.path)])


def collect_words(arguments: Sequence[str]) -> CollectedSweep:
    """Collect the sweep that the words after ``treespec collect`` name.

    Raises:
        TreespecError: They name none, or several; or as in ``collect``.
    """
    if len(arguments) != 1:
        raise TreespecError(
            f"collect needs one folder, got {len(arguments)} ({', '.join(arguments)}): "
            f"{_USAGE}"
        )
    return collect(Path(arguments[0]).expanduser())


def collect(folder: Path) -> CollectedSweep:
    """Write ``sweep.parquet`` into a sweep's folder: a row per job.

    Its columns are the run's key, what to type to run the job alone, ``status`` and
    ``error``; those of ``load_results().runs``; and every key of the configuration, as
    text, named ``config.KEY``. What is not known of a job is null.

    Raises:
        TreespecError: There is no sweep, or the table cannot be written.
    """
    jobs = {job.run_key or job.words: job for job in read_jobs(folder)}
    for run in run_folders(folder):
        if run.parent == folder and run.name not in jobs:
            jobs[run.name] = _unplanned(run)
    if not jobs:
        there = f"has no {SWEEP_LOG} and no run" if folder.is_dir() else "is no folder"
        raise TreespecError(f"{folder} {there}: {_USAGE}")
    loaded = [_load(folder, job) for job in jobs.values()]
    path = folder / TABLE
    _write(path, [row for _, row in loaded])
    num_unread = SweepLog(folder).read().num_unread
    return CollectedSweep(folder, tuple(job for job, _ in loaded), path, num_unread)


def _unplanned(run: Path) -> SweptJob:
    """Return a run that no sweep planned, as a job of the sweep's folder."""
    state, message = run_state(run)
    typed = json_if_whole(run / ENVIRONMENT).get("argv") or [""]
    words = tuple(str(word) for word in typed[1:])
    code = 0 if state == "done" else 1
    return SweptJob(words, run.name, state, message, code, None)


def _load(folder: Path, job: SweptJob) -> tuple[SweptJob, dict[str, Any]]:
    """Return a job and its row; it has failed if its files say what they must not."""
    loaded = None
    try:
        if job.run_key is not None and (folder / job.run_key).is_dir():
            loaded = load_folder(folder / job.run_key)
    except TreespecError as error:
        # Of one that is not done, its state has said what there is to say.
        if job.state == "done":
            job = replace(
                job, state="failed", message=str(error), code=1, needs_force=True
            )
    row: dict[str, Any] = {} if loaded is None else _run_row(loaded)
    own = {
        "run_key": job.run_key,
        "overrides": shlex.join(job.words),
        "status": job.state,
        "error": None if job.state == "done" else job.message,
    }
    return job, {**row, **own}


def _run_row(run: LoadedRun) -> dict[str, Any]:
    settings = {f"config.{row['key']}": row["value"] for row in run.settings}
    return {**run.row, **settings}


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    known = [column for column in RUN_SCHEMA if column.name not in (*_OWN, "run")]
    config = sorted({name for row in rows for name in row if "." in name})
    text = [(name, pa.string()) for name in (*_OWN, *config)]
    columns = [*text[: len(_OWN)], *known, *text[len(_OWN) :]]
    table = pa.Table.from_pylist(list(rows), schema=pa.schema(columns))
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(table, partial)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise TreespecError(
            f"{path}: cannot be written: {error.strerror or error}; make room there"
        ) from error
