"""What the jobs of a sweep were to be, and what became of them.

``sweep.jsonl`` in the folder of a sweep says which command planned which jobs, under
which key each began, and how it ended. It only grows, by whole lines, whichever and
however many processes work at the sweep; a line that a kill has torn is no line. What
a run's own folder says of it has the last word.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError
from treespec.files import disk_error

SWEEP_LOG = "sweep.jsonl"
FORCE = "force="

JobWords = tuple[str, ...]
"""What to type after ``treespec`` to run one job alone; its identity in a sweep."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A command, and the jobs that it was to run.

    Attributes:
        command: What was typed after ``treespec``.
        cwd: Where.
        jobs: Its jobs; empty if the sweeper chooses them as it goes.
    """

    command: tuple[str, ...]
    cwd: str
    jobs: tuple[JobWords, ...]

    def again(self, cwd: str) -> str:
        """Return what to type in ``cwd`` to run what is left of this command."""
        words = [word for word in self.command if not word.startswith(FORCE)]
        line = shlex.join(["treespec", *words])
        return line if cwd == self.cwd else f"cd {shlex.quote(self.cwd)} && {line}"


@dataclass(frozen=True, slots=True)
class JobEnded:
    """How a job ended.

    Attributes:
        code: Its exit code.
        message: Its result or its error in one line.
    """

    code: int
    message: str


@dataclass(slots=True)
class LogContent:
    """All that a log says, the last word on each job.

    Attributes:
        plans: All commands, each once.
        keys: The run's key of each job that began.
        ends: How jobs ended; a job that began again has not.
        num_unread: Whole lines that say nothing, as something broke them.
    """

    plans: list[Plan] = field(default_factory=list)
    keys: dict[JobWords, str] = field(default_factory=dict)
    ends: dict[JobWords, JobEnded] = field(default_factory=dict)
    num_unread: int = 0

    @property
    def jobs(self) -> list[JobWords]:
        """Every job, in the order in which they were planned or began."""
        planned = [job for plan in self.plans for job in plan.jobs]
        return list(dict.fromkeys([*planned, *self.keys, *self.ends]))

    def plan_of(self, job: JobWords) -> Plan | None:
        """Return the last command that planned a job."""
        found = [plan for plan in self.plans if job in plan.jobs]
        return found[-1] if found else None


class SweepLog:
    """The log of one sweep's folder; any number of processes may write to it.

    Args:
        folder: The sweep's folder; made when the first line is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / SWEEP_LOG

    def plan(self, plan: Plan) -> None:
        """Say which jobs a command is to run, unless the log says so already."""
        with self._held() as file:
            if plan not in _read(file).plans:
                _append(file, {"event": "planned", **asdict(plan)})

    def begin(self, job: JobWords, run_key: str) -> None:
        """Say under which key a job begins."""
        with self._held() as file:
            _append(file, {"event": "begun", "job": job, "run_key": run_key})

    def end(self, job: JobWords, ended: JobEnded) -> None:
        """Say how a job ended."""
        with self._held() as file:
            _append(file, {"event": "ended", "job": job, **asdict(ended)})

    def read(self) -> LogContent:
        """Return all that the log says; nothing, if there is none."""
        try:
            with self.path.open("rb") as file:
                return _content(file.read())
        except FileNotFoundError:
            return LogContent()
        except OSError as error:
            raise TreespecError(
                f"{self.path}: cannot be read: {error.strerror}"
            ) from error

    @contextmanager
    def _held(self) -> Iterator[int]:
        """Open the log for this process alone; the claim ends with the process."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise disk_error(self.path, error) from error


def _append(file: int, row: dict[str, Any]) -> None:
    size = os.fstat(file).st_size
    is_torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
    line = ("\n" * is_torn + json.dumps(row) + "\n").encode()
    if os.write(file, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)


def _read(file: int) -> LogContent:
    return _content(os.pread(file, os.fstat(file).st_size, 0))


def _content(written: bytes) -> LogContent:
    content = LogContent()
    for line in written.splitlines(keepends=True):
        if line.endswith(b"\n"):
            try:
                _take(content, json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                content.num_unread += 1
    return content


def _take(content: LogContent, row: dict[str, Any]) -> None:
    event = row["event"]
    if event == "planned":
        jobs = tuple(_words(job) for job in row["jobs"])
        plan = Plan(_words(row["command"]), str(row["cwd"]), jobs)
        if plan not in content.plans:
            content.plans.append(plan)
    elif event == "begun":
        job = _words(row["job"])
        content.keys[job] = str(row["run_key"])
        content.ends.pop(job, None)
    elif event == "ended":
        ended = JobEnded(int(row["code"]), str(row["message"]))
        content.ends[_words(row["job"])] = ended
    else:
        raise ValueError(f"unknown event {event!r}")


def _words(row: Sequence[Any]) -> JobWords:
    return tuple(str(word) for word in row)
