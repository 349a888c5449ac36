"""The run folder: the truth about a run, from which every view can be rebuilt.

Whole files appear by renaming, never half-written; ``prompts.jsonl`` grows by one
flushed line per prompt, so a killed run keeps what it had; ``DONE`` comes last.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from treespec.errors import TreespecError
from treespec.files import disk_error, json_text
from treespec.metrics import Summary
from treespec.outcome import PromptOutcome
from treespec.sinks.base import AbstractSink, RunInfo, RunStatus, status_of
from treespec.sinks.rows import (
    NODE_SCHEMA,
    SCHEMA,
    STEP_SCHEMA,
    Row,
    node_rows,
    prompt_row,
    step_rows,
)

CONFIG, ENVIRONMENT = "config.yaml", "env.json"
PROMPTS, STEPS, NODES = "prompts.jsonl", "steps.parquet", "nodes.parquet"
SUMMARY, STATUS, DONE = "summary.json", "status.json", "DONE"
LOCK = ".lock"
"""Is held by the process that writes the run; stays behind, empty."""

# DONE goes first, so that a folder half emptied never looks finished.
FILES = (DONE, STATUS, SUMMARY, NODES, STEPS, PROMPTS, ENVIRONMENT, CONFIG)
"""All files of a run."""
_PARTIAL = ".partial"
_LOOK_S = 0.02


class RunBusyError(TreespecError):
    """Another process is at this very run."""


class RunDoneError(TreespecError):
    """Another process finished this very run meanwhile."""


def is_done(folder: Path) -> bool:
    """Return whether the folder holds a finished run."""
    with _disk(folder):
        return (folder / DONE).is_file()


def is_busy(folder: Path) -> bool:
    """Return whether a process is writing a run; one that was killed is not."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:  # there is no run, or none that we may look into
        return False
    try:
        # Shared, so that two who look do not take each other for a writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def reopen(folder: Path) -> None:
    """Take ``DONE`` from a run whose files are broken: it is to be decoded anew.

    Raises:
        RunBusyError: Another process is at it already.
        TreespecError: The disk refuses.
    """
    with _disk(folder), ExitStack() as always:
        always.callback(os.close, _lock(folder))
        (folder / DONE).unlink(missing_ok=True)


class RunFolderSink(AbstractSink):
    """Writes ``config.yaml``, ``env.json``, the records, the summary and the status.

    Opening a folder that a killed or failed run left behind starts it afresh. From then
    on it belongs to this process, until ``close`` or the process's end. Any trouble
    with the disk is a ``TreespecError`` that names ``output_root``.

    Args:
        overwrite: Whether to start a finished run afresh as well.
    """

    def __init__(self, overwrite: bool = True) -> None:
        self._overwrite = overwrite

    def check(self, folder: Path) -> None:
        """Refuse a folder that could not be made or written, or is being written."""
        if is_busy(folder):
            raise _busy(folder)
        existing = folder
        with _disk(folder):
            while not existing.exists() and existing != existing.parent:
                existing = existing.parent
        if not existing.is_dir():
            raise disk_error(folder, f"{existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise disk_error(folder, f"{existing} is not writable")

    def open(self, run: RunInfo) -> None:
        """Write what is known before the first prompt."""
        self._folder = run.folder
        self._num_prompts = 0
        self._known_as = {
            "run_key": run.run_key,
            "sweep_name": run.sweep_name,
            "tags": list(run.tags),
        }
        self._started_at = _now()
        self._tables: dict[str, pq.ParquetWriter] = {}
        with _disk(run.folder), ExitStack() as undoing:
            run.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(run.folder)
            undoing.callback(os.close, self._lock)
            self._begin(run)
            undoing.pop_all()

    def _begin(self, run: RunInfo) -> None:
        """Write what is known before the first prompt into a folder that is ours."""
        if is_done(run.folder) and not self._overwrite:
            raise RunDoneError(f"{run.folder}: another process finished it meanwhile")
        for name in FILES:
            (run.folder / name).unlink(missing_ok=True)
            (run.folder / (name + _PARTIAL)).unlink(missing_ok=True)
        config = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
        _write(run.folder / CONFIG, config)
        _write(run.folder / ENVIRONMENT, _pretty(dict(run.environment)))
        self._write_status("running", None, None)
        self._prompts: IO[str] = (run.folder / PROMPTS).open("x", encoding="utf-8")
        self._append(STEPS, STEP_SCHEMA, [])

    def prompt(self, outcome: PromptOutcome) -> None:
        """Append one prompt; once this returns, a kill cannot take it away."""
        with _disk(self._folder):
            self._append(STEPS, STEP_SCHEMA, step_rows(self._num_prompts, outcome))
            nodes = node_rows(self._num_prompts, outcome)
            if nodes:
                self._append(NODES, NODE_SCHEMA, nodes)
            row = prompt_row(self._num_prompts, outcome)
            self._prompts.write(json_text(row) + "\n")
            _sync(self._prompts)
            self._num_prompts += 1

    def close(self, summary: Summary | None, status: RunStatus) -> None:
        """Write the rest; ``DONE`` only after everything else, and only if it is."""
        with ExitStack() as always, _disk(self._folder):
            always.callback(os.close, self._lock)
            try:
                self._close_records()
                if summary is not None:
                    _write(self._folder / SUMMARY, _pretty(summary))
            except OSError as error:
                status = status_of(error) if status.status == "done" else status
                raise
            finally:
                self._write_status(**asdict(status))
            if status.status == "done":
                _write(self._folder / DONE, "")

    def _close_records(self) -> None:
        """Close every file of records, also if another cannot be."""
        with ExitStack() as closing:
            for name in self._tables:
                closing.callback(self._close_table, name)
            closing.callback(self._prompts.close)

    def _close_table(self, name: str) -> None:
        partial = self._folder / (name + _PARTIAL)
        self._tables[name].close()
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, self._folder / name)

    def _append(self, name: str, schema: pa.Schema, rows: list[Row]) -> None:
        if name not in self._tables:
            path = self._folder / (name + _PARTIAL)
            self._tables[name] = pq.ParquetWriter(path, schema)
        if rows:
            self._tables[name].write_table(pa.Table.from_pylist(rows, schema=schema))

    def _write_status(
        self, status: str, error: str | None, traceback: str | None
    ) -> None:
        content = {
            "schema": SCHEMA,
            **self._known_as,
            "status": status,
            "error": error,
            "traceback": traceback,
            "num_prompts": self._num_prompts,
            "started_at": self._started_at,
            "ended_at": None if status == "running" else _now(),
        }
        _write(self._folder / STATUS, _pretty(content))


def _lock(folder: Path) -> int:
    """Claim a folder for this process; the claim ends when the process does.

    Returns:
        A file descriptor; closing it gives the folder back.
    """
    # A file of its own: where folders are shared, locks of folders are not.
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    for is_last in (False, False, True):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if is_last:
                os.close(descriptor)
                raise _busy(folder) from error
            time.sleep(_LOOK_S)  # someone may only be looking: is_busy
        else:
            break
    return descriptor


def _busy(folder: Path) -> RunBusyError:
    return RunBusyError(
        f"output_root: another process is writing this very run to {folder}; wait "
        "for it, or choose another place with output_root=DIR"
    )


def _write(path: Path, content: str) -> None:
    """Write a whole file so that it is there entirely or not at all."""
    partial = path.with_name(path.name + _PARTIAL)
    with partial.open("w", encoding="utf-8") as file:
        file.write(content)
        _sync(file)
    os.replace(partial, path)


def _sync(file: IO[str]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _pretty(content: dict[str, Any]) -> str:
    return json_text(content, indent=2) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(folder, error) from error
