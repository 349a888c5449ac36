"""``treespec upload``: finished runs into W&B, from their files alone.

The records are read back and told to the sink that is told of a run while it goes, so
both write the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.analysis.pictures import TreePictures
from treespec.errors import TreespecError, unknown_name
from treespec.files import MALFORMED
from treespec.sinks.base import RunInfo, recording
from treespec.sinks.reader import Run, read_run, run_folders
from treespec.sinks.wandb import MODES, WandbSink
from treespec.untimed import NUM_JOBS_BESIDE

HELP = """\
treespec upload RUN_OR_SWEEP [key=value ...] writes finished runs to Weights & Biases,
from their files alone; what W&B has of them already is written anew.

  mode=offline|online|auto   as wandb.mode (offline; wandb sync sends it later)
  project=NAME               the W&B project (that of the run)
"""
_KEYS = ("mode", "project")


@dataclass(frozen=True, slots=True)
class Upload:
    """What became of the runs.

    Attributes:
        written: Folders of the runs that W&B has now.
        failed: Folders of those that it has not, and why.
    """

    written: tuple[Path, ...]
    failed: dict[Path, str]

    def __str__(self) -> str:
        """Return a line per run that is missing, and the count."""
        lines = [f"not written: {reason}" for reason in self.failed.values()]
        total = len(self.written) + len(self.failed)
        return "\n".join(
            [*lines, f"{len(self.written)} of {total} runs written to W&B"]
        )


def upload(arguments: Sequence[str]) -> Upload:
    """Write the runs that the arguments name.

    Args:
        arguments: A folder with runs and ``key=value`` pairs, in any order.

    Raises:
        TreespecError: The arguments are wrong, there is no run, or there is no key.
    """
    source, given = _read(arguments)
    folders = run_folders(source)
    if not folders:
        raise TreespecError(
            f"{source} has no run in it; give a run's folder, or that of a sweep, such "
            "as outputs/default"
        )
    WandbSink(mode=given.get("mode", "offline")).check(source)
    written, failed = [], {}
    for folder in folders:
        try:
            write_to_wandb(read_run(folder), given.get("mode"), given.get("project"))
        except TreespecError as error:
            failed[folder] = str(error)
        except MALFORMED as error:  # a status that lacks what W&B is to be told
            failed[folder] = (
                f"{folder}: cannot be told ({type(error).__name__}: {error})"
            )
        else:
            written.append(folder)
    return Upload(tuple(written), failed)


def write_to_wandb(
    run: Run, mode: str | None = None, project: str | None = None
) -> None:
    """Tell W&B of a finished run what it would have been told while it went.

    Args:
        run: The run.
        mode: As ``wandb.mode``; ``offline`` if not given.
        project: The W&B project; the run's own if not given.

    Raises:
        TreespecError: W&B did not take it.
    """
    own: Any = run.config.get("wandb")
    own = own if isinstance(own, dict) else {}
    sink = WandbSink(
        mode=mode or "offline",
        project=project or own.get("project", "treespec"),
        pictures=_pictures(run.config),
    )
    sink.check(run.folder)
    with recording([sink], info_of(run)) as record:
        for outcome in run.outcomes:
            record.prompt(outcome)
        record.summary = run.summary
    if sink.failure is not None:
        raise TreespecError(f"{run.folder}: W&B did not take it: {sink.failure}")


def _pictures(config: dict[str, Any]) -> TreePictures:
    """Return what drew the run's trees; the usual, if its configuration names none."""
    part: Any = config
    for name in ("sink", "wandb", "pictures"):
        part = part.get(name) if isinstance(part, dict) else None
    given = part.get("max_prompts") if isinstance(part, dict) else None
    return TreePictures() if given is None else TreePictures(given)


def info_of(run: Run) -> RunInfo:
    """Return what identified a run when it was recorded."""
    return RunInfo(
        run_key=run.status["run_key"],
        sweep_name=run.status["sweep_name"],
        folder=run.folder,
        config=run.config,
        environment=run.environment,
        tags=tuple(run.status["tags"]),
        is_timed=lambda: not run.summary.get(NUM_JOBS_BESIDE),
    )


def _read(arguments: Sequence[str]) -> tuple[Path, dict[str, str]]:
    """Return the folder, and the keys with their values."""
    pairs = [text.partition("=") for text in arguments]
    given = {
        key: value for key, equals, value in pairs if equals and key.isidentifier()
    }
    places = [text for text in arguments if text.partition("=")[0] not in given]
    for key in given:
        if key not in _KEYS:
            raise unknown_name("key of upload", key, _KEYS)
    if len(places) != 1:
        raise TreespecError(
            f"upload: give one folder, got {len(places)}; for example treespec upload "
            "outputs/default"
        )
    mode = given.get("mode", "offline")
    if mode not in MODES or mode == "disabled":
        raise TreespecError(f"mode must be offline, online or auto, got {mode!r}")
    return Path(places[0]).expanduser(), given
