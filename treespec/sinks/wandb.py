"""W&B as a view of the run folder; the only file that knows W&B.

The same numbers under the same names as in ``summary.json``. Whatever goes wrong here
costs one warning and never a result.
"""

from __future__ import annotations

import logging
import netrc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from treespec.errors import TreespecError
from treespec.metrics import Summary, summarize_prompt
from treespec.outcome import PromptOutcome
from treespec.sinks.base import AbstractSink, RunInfo, RunStatus
from treespec.sinks.rows import SCHEMA
from treespec.untimed import SPEEDS

_MODES = ("offline", "online", "disabled")
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

OWN = "_treespec"
"""Key of a W&B run's config with what is no setting: the layout, the environment."""

_log = logging.getLogger(__name__)


class WandbSink(AbstractSink):
    """Sends each run of treespec to one W&B run of its own.

    The run's id is its ``run_key`` and its group the sweep, whatever the environment
    says (``WANDB_RUN_ID`` would merge the jobs of a sweep). Offline runs lie below the
    run's folder and make no network attempt; ``wandb sync`` uploads them later.

    Args:
        mode: ``offline``, ``online`` or ``disabled``.
        project: The W&B project.
    """

    def __init__(
        self,
        mode: Literal["offline", "online", "disabled"] = "offline",
        project: str = "treespec",
    ) -> None:
        if mode not in _MODES:
            raise TreespecError(
                f"wandb.mode must be one of {', '.join(_MODES)}, got {mode!r}"
            )
        self.mode = mode
        self.project = project
        self._run: Any = None
        self._is_timed: Callable[[], bool] = lambda: True
        self._num_prompts = 0

    def check(self, folder: Path) -> None:
        """Refuse ``online`` without a key, instead of asking for one half-way."""
        if self.mode == "online" and not _has_key():
            raise TreespecError(
                "wandb.mode=online needs an API key, and there is none: run `wandb "
                "login` (or set WANDB_API_KEY), or use wandb.mode=offline"
            )

    def open(self, run: RunInfo) -> None:
        """Start the W&B run."""
        self._run = None
        self._is_timed = run.is_timed
        self._num_prompts = 0
        if self.mode == "disabled":
            return
        with self._guarded():
            import wandb  # noqa: PLC0415 (costs a second; loaded only when used)

            # What a killed run of the same key left is superseded, like its records.
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
            known = wandb.Settings.model_fields
            settings = {key: _RESERVED[key] for key in _RESERVED if key in known}
            self._run = wandb.init(
                mode=self.mode,
                project=self.project,
                dir=str(run.folder.absolute()),
                group=run.sweep_name,
                id=run.run_key,
                name=run.run_key,
                tags=list(run.tags),
                config={**run.config, OWN: {"schema": SCHEMA, **run.environment}},
                reinit="finish_previous",
                settings=wandb.Settings(silent=self.mode == "offline", **settings),
            )
            self._run.define_metric("prompt_idx")
            self._run.define_metric(
                "prompt/*", step_metric="prompt_idx", summary="mean"
            )

    def prompt(self, outcome: PromptOutcome) -> None:
        """Log one prompt's headline numbers."""
        numbers = {
            f"prompt/{name}": value
            for name, value in summarize_prompt(outcome).items()
            if value is not None and (name not in SPEEDS or self._is_timed())
        }
        if self._run is not None:
            with self._guarded():
                self._run.log({"prompt_idx": self._num_prompts, **numbers})
        self._num_prompts += 1

    def close(self, summary: Summary | None, status: RunStatus) -> None:
        """Store the summary and finish the W&B run, also after a failure."""
        if self._run is not None and summary is not None:
            with self._guarded():
                self._run.summary.update(flatten(summary))
        if self._run is not None:
            with self._guarded():
                self._run.finish(exit_code=0 if status.status == "done" else 1)
        self._run = None

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
            reason = " ".join(str(error).split()) or type(error).__name__
            _log.warning(
                "W&B stopped (%s): the run folder stays complete without it. "
                "wandb.mode=disabled turns W&B off.",
                reason,
            )


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts as one, keys joined by dots; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": v for name, v in flatten(value).items()})
        else:
            flat[key] = value
    return flat


def _has_key() -> bool:
    """Return whether W&B would find credentials, without asking or connecting."""
    import wandb  # noqa: PLC0415

    settings = wandb.setup().settings
    if settings.api_key or settings.identity_token_file:
        return True
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(settings.base_url).hostname or ""
    homes = (os.environ.get("NETRC"), "~/.netrc", "~/_netrc")
    paths = [Path(home).expanduser() for home in homes if home]
    return any(_netrc_has(path, host) for path in paths)


def _netrc_has(path: Path, host: str) -> bool:
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
