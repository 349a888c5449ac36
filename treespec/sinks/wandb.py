"""W&B as a view of the run folder; with its reader the only file that knows W&B.

The same numbers under the same names as in ``summary.json``, and the run's own files.
Whatever goes wrong here costs one warning and never a result.
"""

from __future__ import annotations

import logging
import netrc
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from treespec.errors import TreespecError
from treespec.metrics import Summary, summarize_prompt
from treespec.outcome import PromptOutcome
from treespec.sinks.base import AbstractSink, Picture, RunInfo, RunStatus
from treespec.sinks.rows import SCHEMA
from treespec.sinks.run_folder import FILES
from treespec.sinks.wandb_tables import tables
from treespec.untimed import SPEEDS

MODES = ("offline", "online", "auto", "disabled")
Pictures = Callable[[RunInfo, Sequence[PromptOutcome]], Sequence[Picture]]
"""From a run and its prompts to drawings of it."""

# What W&B records about a machine without being asked. Names that begin with x_ come
# and go between its releases, so unknown ones are left out.
_RESERVED = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "init_timeout": 30,
    "finish_timeout": 60,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
}
_PROBE_S = 3.0
_NOT_IN_PROJECTS, _MOST_CHARACTERS = "/\\#?%:", 128  # W&B's own rule
_DATA_DIR = "WANDB_DATA_DIR"

OWN = "_treespec"
"""Key of a W&B run's config with what is no setting: the layout, the environment."""
ARTIFACT = "run-folder"
"""Type of the artifact that holds a run's files."""

_log = logging.getLogger(__name__)


class WandbSink(AbstractSink):
    """Sends each run of treespec to one W&B run of its own.

    The run's id is its ``run_key`` and its group the sweep, whatever the environment
    says (``WANDB_RUN_ID`` would merge the jobs of a sweep). It gets a row per prompt
    over ``prompt_idx``, the summary once, tables of the prompts and of the acceptance
    by depth and by rank, drawn trees, and the run's files as an artifact. Offline runs
    lie below the run's folder and make no network attempt; ``wandb sync`` uploads them
    later.

    Attributes:
        failure: Why W&B stopped in the last run; ``None`` if it did not.

    Args:
        mode: ``offline``, ``online``, ``disabled``, or ``auto``: online if there is a
            key and the server takes a connection within 3 seconds, else offline.
        project: The W&B project.
        pictures: What draws a run; ``None`` for no drawings.
    """

    def __init__(
        self,
        mode: str = "offline",
        project: str = "treespec",
        pictures: Pictures | None = None,
    ) -> None:
        if mode not in MODES:
            raise TreespecError(
                f"wandb.mode must be one of {', '.join(MODES)}, got {mode!r}"
            )
        is_name = isinstance(project, str) and 0 < len(project) <= _MOST_CHARACTERS
        if not is_name or not set(project).isdisjoint(_NOT_IN_PROJECTS):
            raise TreespecError(
                f"wandb.project must be a text of at most {_MOST_CHARACTERS} "
                f"characters, none of them in {_NOT_IN_PROJECTS}, got {project!r}"
            )
        self.mode = mode
        self.project = project
        self.pictures = pictures
        self.failure: str | None = None
        self._run: Any = None

    def check(self, folder: Path) -> None:
        """Refuse ``online`` without a key, instead of asking for one half-way."""
        if self.mode == "online" and not _has_key():
            raise TreespecError(
                "wandb.mode=online needs an API key, and there is none: run `wandb "
                "login` (or set WANDB_API_KEY), or use wandb.mode=offline"
            )

    def open(self, run: RunInfo) -> None:
        """Start the W&B run."""
        self._run, self.failure = None, None
        self._info = run
        self._outcomes: list[PromptOutcome] = []
        if self.mode == "disabled":
            return
        with self._guarded():
            # What a killed run of the same key left is superseded, like its records.
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
            online = _can_be_online() if self.mode == "auto" else self.mode == "online"
            self._run = _begin(run, self.project, online=online)

    def prompt(self, outcome: PromptOutcome) -> None:
        """Log one prompt's headline numbers."""
        if self._run is None:
            return
        numbers = {
            f"prompt/{name}": value
            for name, value in summarize_prompt(outcome).items()
            if value is not None and (name not in SPEEDS or self._info.is_timed())
        }
        with self._guarded():
            self._run.log({"prompt_idx": len(self._outcomes), **numbers})
        self._outcomes.append(outcome)

    def close(self, summary: Summary | None, status: RunStatus) -> None:
        """Store the summary and all else, and finish the W&B run, also if it failed."""
        if self._run is not None:
            with self._guarded():
                if summary is not None:
                    self._run.summary.update(flatten(summary))
                with _staged_in(self._info.folder):
                    self._log_once()
                self._run.finish(exit_code=0 if status.status == "done" else 1)
        self._run = None

    def _log_once(self) -> None:
        """Log what there is one of per run."""
        _log_tables(self._run, tables(self._outcomes, self._info.is_timed()))
        _log_files(self._run, self._info)
        if self.pictures is not None:
            _log_pictures(self._run, self.pictures(self._info, self._outcomes))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn any failure into one warning, end the W&B run, send nothing more."""
        try:
            yield
        except Exception as error:  # a view must not take the run down with it
            broken, self._run = self._run, None
            if broken is not None:
                with suppress(Exception):
                    broken.finish(exit_code=1)
            self.failure = " ".join(str(error).split()) or type(error).__name__
            _log.warning(
                "W&B stopped (%s): the run folder stays complete without it. "
                "wandb.mode=disabled turns W&B off.",
                self.failure,
            )


def _begin(run: RunInfo, project: str, *, online: bool) -> Any:
    """Return a W&B run of its own for a run."""
    import wandb  # noqa: PLC0415 (costs a second; loaded only when used)

    known = wandb.Settings.model_fields
    settings = {key: _RESERVED[key] for key in _RESERVED if key in known}
    begun = wandb.init(
        mode="online" if online else "offline",
        project=project,
        dir=str(run.folder.absolute()),
        group=run.sweep_name,
        job_type="run",
        id=run.run_key,
        name=_name(run),
        tags=list(run.tags),
        config={**run.config, OWN: {"schema": SCHEMA, **run.environment}},
        reinit="finish_previous",
        settings=wandb.Settings(silent=not online, **settings),
    )
    begun.define_metric("prompt_idx")
    begun.define_metric("prompt/*", step_metric="prompt_idx", summary="mean")
    return begun


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """Let W&B keep copies of what it sends later beside its run, not in the home.

    Homes are read-only on many a cluster. Whoever has set the variable is obeyed.
    """
    if _DATA_DIR in os.environ:
        yield
        return
    os.environ[_DATA_DIR] = str(folder.absolute() / "wandb")
    try:
        yield
    finally:
        del os.environ[_DATA_DIR]


def _name(run: RunInfo) -> str:
    """Return what a run is called among others: its parts, its seed, its key."""
    parts = [run.config.get(part) for part in ("policy", "drafter")]
    targets = [part.get("_target_") for part in parts if isinstance(part, Mapping)]
    words = [str(target).rpartition(".")[2] for target in targets if target is not None]
    return "-".join([*words, f"s{run.config.get('seed', 0)}", run.run_key[:6]])


def _log_tables(begun: Any, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    import wandb  # noqa: PLC0415

    logged = {
        f"tables/{name}": wandb.Table(
            columns=list(rows[0]), data=[list(row.values()) for row in rows]
        )
        for name, rows in found.items()
    }
    if logged:
        begun.log(logged)


def _log_pictures(begun: Any, pictures: Sequence[Picture]) -> None:
    import wandb  # noqa: PLC0415

    pages = [
        wandb.Html(
            f'<!doctype html><meta charset="utf-8"><title>{escape(picture.title)}'
            f"</title><p>{escape(picture.title)}</p>{picture.svg}",
            inject=False,
            data_is_not_path=True,
        )
        for picture in pictures
    ]
    if pages:
        begun.log({"trees": pages})


def _log_files(begun: Any, run: RunInfo) -> None:
    """Hand over the run's files as they are; an offline run refers to their places."""
    import wandb  # noqa: PLC0415

    paths = [run.folder.absolute() / name for name in sorted(FILES)]
    there = [path for path in paths if path.is_file()]
    if not there:
        return
    artifact = wandb.Artifact(f"run-{run.run_key}", type=ARTIFACT)
    for path in there:
        artifact.add_file(str(path), name=path.name, policy="immutable")
    begun.log_artifact(artifact)


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts as one, keys joined by dots; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": v for name, v in flatten(value).items()})
        else:
            flat[key] = value
    return flat


def _can_be_online() -> bool:
    """Return whether W&B has a key and a server that answers; warn if it has not.

    A connection is made past any proxy: behind one, choose ``online``.
    """
    if not _has_key():
        reason = "there is no API key"
    else:
        url = _base_url()
        host, port = (
            url.hostname or "",
            url.port or (80 if url.scheme == "http" else 443),
        )
        try:
            socket.create_connection((host, port), timeout=_PROBE_S).close()
        except OSError as error:
            reason = f"{host} does not answer ({error})"
        else:
            return True
    _log.warning("W&B writes offline, as %s; wandb.mode=online insists", reason)
    return False


def _base_url() -> Any:
    import wandb  # noqa: PLC0415

    return urlparse(wandb.setup().settings.base_url)


def _has_key() -> bool:
    """Return whether W&B would find credentials, without asking or connecting."""
    import wandb  # noqa: PLC0415

    settings = wandb.setup().settings
    if settings.api_key or settings.identity_token_file:
        return True
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = _base_url().hostname or ""
    homes = (os.environ.get("NETRC"), "~/.netrc", "~/_netrc")
    paths = [Path(home).expanduser() for home in homes if home]
    return any(_netrc_has(path, host) for path in paths)


def _netrc_has(path: Path, host: str) -> bool:
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
