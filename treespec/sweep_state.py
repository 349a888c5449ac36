"""What became of each job of a sweep: its log and its run folders, read together."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from treespec.errors import TreespecError
from treespec.files import read_json
from treespec.sinks.damage import damage
from treespec.sinks.run_folder import STATUS, SUMMARY, is_busy, is_done
from treespec.sweep_log import FORCE, JobWords, LogContent, Plan, SweepLog
from treespec.untimed import NUM_JOBS_BESIDE

State = Literal["done", "failed", "missing", "running"]
"""``missing`` is a job that has not begun, or was killed or interrupted;
``running`` is one that another process is at."""

_CODES: Mapping[State, int] = {"done": 0, "failed": 1, "missing": 1, "running": 4}
_WIDTH = max(map(len, get_args(State)))


@dataclass(frozen=True, slots=True)
class SweptJob:
    """One job of a sweep.

    Attributes:
        words: What to type after ``treespec`` to run it alone.
        run_key: Its run's key; ``None`` if it has not begun.
        state: What became of it.
        message: The same in a line.
        code: The exit code of its process, or what it would be.
        plan: The command that planned it, if one did.
        needs_force: Whether nothing but force runs it again, as it counts as done.
    """

    words: JobWords
    run_key: str | None
    state: State
    message: str
    code: int
    plan: Plan | None
    needs_force: bool = False

    def again(self, cwd: str) -> str:
        """Return what to type in ``cwd`` so that it is run."""
        if self.needs_force:
            return shlex.join(["treespec", *self.words, f"{FORCE}true"])
        plan = self.plan or Plan(self.words, cwd, (self.words,))
        return plan.again(cwd)


def read_jobs(folder: Path, only: Iterable[JobWords] | None = None) -> list[SweptJob]:
    """Return the jobs of a sweep's log, in order; jobs of one key are one job.

    Args:
        folder: The sweep's folder.
        only: The jobs to tell of; ``None`` for all.

    Raises:
        TreespecError: The log cannot be read.
    """
    content = SweepLog(folder).read()
    words = content.jobs if only is None else list(only)
    jobs: dict[object, SweptJob] = {}
    for job in words:
        found = _read_job(folder, job, content)
        jobs[found.run_key or job] = found
    return list(jobs.values())


def _read_job(folder: Path, job: JobWords, content: LogContent) -> SweptJob:
    key, ended = content.keys.get(job), content.ends.get(job)
    run = folder / key if key is not None else None
    failed = None if ended is None or ended.code == 0 else ended.message
    state, message = run_state(run, failed)
    code = _CODES[state]
    if ended is not None and ended.code and state != "done":
        code = ended.code
    return SweptJob(job, key, state, message, code, content.plan_of(job))


def run_state(run: Path | None, failed: str | None = None) -> tuple[State, str]:
    """Return what became of a job, and the same in a line.

    Args:
        run: Its run's folder, whether or not there is one; ``None`` if it has no key.
        failed: How its process saw it fail; ``None`` if it did not.
    """
    if run is not None and is_busy(run):
        return "running", f"another process is at it, {run}"
    if run is not None and is_done(run):
        broken = damage(run)
        return ("done", _done_message(run)) if broken is None else ("failed", broken)
    if failed is not None:
        return "failed", failed
    return ("missing", "not begun") if run is None else _unfinished(run)


def _unfinished(run: Path) -> tuple[State, str]:
    status = json_if_whole(run / STATUS)
    if status.get("status") == "failed":
        error = " ".join(str(status.get("error")).split())
        return "failed", f"{error}; the traceback is in {run / STATUS}"
    if status.get("status") == "interrupted":
        return "missing", f"interrupted after {status.get('num_prompts')} prompts"
    return "missing", "killed before it ended"


def _done_message(run: Path) -> str:
    summary = json_if_whole(run / SUMMARY)
    beside = summary.get(NUM_JOBS_BESIDE)
    speedup, length = summary.get("speedup"), summary.get("mean_acceptance_length")
    told = [
        f"speed-up {speedup:.2f}x" if isinstance(speedup, float) else "",
        f"{length:.2f} tokens/forward" if isinstance(length, float) else "",
        f"no speed, as other jobs ran beside it: {beside}" if beside else "",
        str(run),
    ]
    return ", ".join(word for word in told if word)


def render_jobs(title: str, jobs: Sequence[SweptJob], cwd: str) -> str:
    """Return the jobs as a table, with what to type for those that are not done.

    Args:
        title: The sweep's name.
        jobs: Its jobs.
        cwd: Where the reader would type it.
    """
    shared = set.intersection(*(set(job.words) for job in jobs)) if jobs else set()
    lines = [f"{title}: {count_states(jobs)}"]
    for job in jobs:
        own = " ".join(word for word in job.words if word not in shared)
        lines.append(f"  {job.state:<{_WIDTH}}  {own or '(as it is)'}: {job.message}")
    left = [job for job in jobs if job.state != "done"]
    if left:
        lines.append("to run what is left (what is done is not run again):")
        lines += [f"  {line}" for line in commands_for(left, cwd)]
    return "\n".join(lines)


def count_states(jobs: Sequence[SweptJob]) -> str:
    """Return how many jobs are in each state, in words."""
    counts = Counter(job.state for job in jobs)
    states = [state for state in _CODES if state != "running" or counts[state]]
    told = ", ".join(f"{counts[state]} {state}" for state in states)
    return f"{len(jobs)} job{'s' * (len(jobs) != 1)}: {told}"


def commands_for(jobs: Iterable[SweptJob], cwd: str) -> list[str]:
    """Return the commands that run some jobs: those that planned them, each once."""
    return list(dict.fromkeys(job.again(cwd) for job in jobs))


def json_if_whole(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty where there is none, or it is torn."""
    try:
        return read_json(path)
    except TreespecError:
        return {}
