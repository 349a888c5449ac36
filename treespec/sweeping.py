"""The jobs of a command: each attempted, told to the log of its sweep, summed up.

One of the files that know Hydra: which jobs a command has is Hydra's to say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from treespec.errors import DiskError, TreespecError
from treespec.files import read_yaml
from treespec.sweep_log import FORCE, JobEnded, JobWords, Plan, SweepLog

if TYPE_CHECKING:
    from treespec.job import Job
    from treespec.loaded_models import LoadedModels

OK, FAILED, BAD_INPUT, NOT_LOSSLESS, BUSY, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit codes; ``BUSY``: all that is not done is being run by other processes."""

MULTIRUN = ("-m", "--multirun")
_CONFIG_PATH, _CONFIG_NAME = ("--config-path", "-cp"), ("--config-name", "-cn")
_WITH_VALUE = (*_CONFIG_PATH, *_CONFIG_NAME, "--config-dir", "-cd")
_SEARCH_PATH = "hydra.searchpath="
_PLACES = ("output_root=", "sweep_name=")


def typed_overrides() -> list[str]:
    """Return the job's overrides as they were typed, interpolations included."""
    overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    assert isinstance(overrides, list)
    return [str(override) for override in overrides]


def typed_targets() -> list[str]:
    """Return the import paths that the user typed: typing one means trusting it."""
    pairs = (text.partition("=") for text in typed_overrides())
    return [value for key, _, value in pairs if key.endswith("_target_")]


def typed_job(config: DictConfig) -> Job:
    """Return the job of a configuration, with the trust that was typed for it.

    Raises:
        TreespecError: A value is missing, unknown or wrong; names its key.
    """
    from treespec.build import build_job  # noqa: PLC0415 (takes seconds)

    may_execute = any(map(gives_permission, typed_overrides()))
    return build_job(config, trusted=typed_targets(), may_execute=may_execute)


def gives_permission(override: str) -> bool:
    """Return whether an override allows to run code that a model wrote."""
    key, _, value = override.partition("=")
    is_about_it = key.rpartition(".")[2].lstrip("+") == "execute_code"
    return is_about_it and value.strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class CommandWords:
    """The words of a command, sorted.

    Attributes:
        flags: Those that say how to compose, ``-m`` left out.
        overrides: The rest.
        is_sweep: Whether ``-m`` was there.
    """

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    is_sweep: bool

    @classmethod
    def of(cls, words: Sequence[str]) -> CommandWords:
        """Sort the words that were typed after ``treespec``."""
        flags: list[str] = []
        overrides: list[str] = []
        is_value = False
        for word in words:
            is_flag = is_value or word.startswith("-")
            if is_flag and word not in MULTIRUN:
                flags.append(word)
            elif not is_flag:
                overrides.append(word)
            is_value = word in _WITH_VALUE
        return cls(
            flags=tuple(flags),
            overrides=tuple(overrides),
            is_sweep=not set(MULTIRUN).isdisjoint(words),
        )

    def job(self, overrides: Sequence[str]) -> JobWords:
        """Return what to type to run a job with these overrides alone."""
        where = [text for text in self.overrides if text.startswith(_SEARCH_PATH)]
        own = [text for text in overrides if not text.startswith(FORCE)]
        return (*self.flags, *where, *own)

    def jobs(self) -> list[JobWords]:
        """Return all jobs of a sweep, as Hydra's basic sweeper makes them.

        To be called inside of a job, as a sweep may have parameters of its own.
        """
        settings, composer = HydraConfig.get().sweeper, GlobalHydra.instance()
        if not str(settings.get("_target_")).endswith("BasicSweeper"):
            return []
        own = [f"{key}={value}" for key, value in (settings.params or {}).items()]
        loader = composer.config_loader() if composer.is_initialized() else None
        parsed = OverridesParser.create(loader).parse_overrides([*own, *self.overrides])
        choices = {
            override.get_key_element(): _choices(override)
            for override in parsed
            if not override.is_hydra_override()
        }
        return [self.job(chosen) for chosen in product(*choices.values())]

    def compose_shared(self, conf: Path, version_base: Mapping[str, Any]) -> DictConfig:
        """Return the configuration that all jobs of a sweep have in common.

        Args:
            conf: The folder of configurations, where no flag says another.
            version_base: What Hydra is to be told of versions.
        """
        parsed = OverridesParser.create().parse_overrides(list(self.overrides))
        shared = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
        where = self.flag(*_CONFIG_PATH) or conf
        with initialize_config_dir(str(Path(where).absolute()), **version_base):
            name = self.flag(*_CONFIG_NAME) or "config"
            config: DictConfig = compose(name, shared)
            return config

    def flag(self, *names: str) -> str | None:
        """Return the value of a flag, which follows it or an equals sign in it."""
        for place, flag in enumerate(self.flags):
            name, equals, value = flag.partition("=")
            if name in names:
                following = self.flags[place + 1 : place + 2]
                return value if equals else next(iter(following), None)
        return None


def check_config_path(words: CommandWords) -> None:
    """Refuse a folder whose ``config.yaml`` cannot be what a job is repeated from.

    Raises:
        TreespecError: There is none, or it holds no keys and values.
    """
    where = words.flag(*_CONFIG_PATH)
    if where is None or not Path(where).is_dir():
        return  # Hydra tells that there is no folder
    path = Path(where) / f"{words.flag(*_CONFIG_NAME) or 'config'}.yaml"
    if path.exists():
        read_yaml(path, "give the folder of a run whose config.yaml is whole")
        return
    runs = sorted(found.parent for found in Path(where).glob(f"*/{path.name}"))
    hint = f"; it holds runs, such as {runs[0]}: name one" if runs else ""
    raise TreespecError(f"--config-path: {where} has no {path.name}{hint}")


def _choices(override: Override) -> list[str]:
    key = override.get_key_element()
    if override.is_sweep_override():
        return [f"{key}={value}" for value in override.sweep_string_iterator()]
    return [f"{key}={override.get_value_element_as_str()}"]


class Jobs:
    """Attempts at the jobs of one command; the models of one serve the next.

    Args:
        words: What was typed after ``treespec``.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._command = tuple(words)
        self._words = CommandWords.of(words)
        self._cwd = os.getcwd()
        self._process = os.getpid()
        self._models: LoadedModels | None = None
        self._sweeps: dict[Path, Plan] = {}

    def attempt(self, config: DictConfig) -> tuple[int, str]:
        """Return the exit code and the message of one job."""
        words = self._words.job(typed_overrides())
        try:
            log = self._log(config, words)
            ended = self._run(config, words, log)
            if log is not None and ended.code != BUSY:
                log.end(words, ended)
        except TreespecError as error:
            return exit_code(error), str(error)
        return ended.code, ended.message

    def report(self) -> int | None:
        """Show what became of the jobs of a sweep, and return the exit code.

        Returns:
            ``None`` if no job of this process was told to a sweep's log.
        """
        from treespec.sweep_state import read_jobs, render_jobs  # noqa: PLC0415

        codes = []
        for folder, plan in self._sweeps.items():
            jobs = read_jobs(folder, plan.jobs or None)
            print(f"\n{render_jobs(str(folder), jobs, self._cwd)}", flush=True)
            codes += [job.code for job in jobs]
        worst = max((code for code in codes if code != BUSY), default=OK)
        return (BUSY if worst == OK and BUSY in codes else worst) if codes else None

    def find_sweep(self, conf: Path, version_base: Mapping[str, Any]) -> None:
        """Take up the sweep of this command, if its jobs ran in other processes.

        Args:
            conf: The folder of configurations.
            version_base: What Hydra is to be told of versions.
        """
        if self._sweeps or not self._words.is_sweep:
            return
        with suppress(HydraException, OmegaConfBaseException, TreespecError):
            config = self._words.compose_shared(conf, version_base)
            folder = _sweep_folder(config)
            if folder is None:
                return
            own = (self._command, self._cwd)
            for plan in SweepLog(folder).read().plans:
                if (plan.command, plan.cwd) == own:
                    self._sweeps[folder] = plan

    def _run(
        self, config: DictConfig, words: JobWords, log: SweepLog | None
    ) -> JobEnded:
        # Torch and transformers take seconds; a mistyped key should not wait for them.
        from treespec.loaded_models import LoadedModels  # noqa: PLC0415
        from treespec.runner import LosslessViolationError, run  # noqa: PLC0415

        if self._models is None:
            self._models = LoadedModels()
        job = None
        try:
            job = typed_job(config)
            if log is not None:
                log.begin(words, job.run_key)
            report = run(job, self._models)
        except TreespecError as error:
            return JobEnded(exit_code(error), str(error))
        except LosslessViolationError as error:
            assert job is not None
            return JobEnded(exit_code(error), f"{error}; see {job.folder}")
        # One job must not take the others with it, not even by leaving Python.
        except (Exception, SystemExit) as error:
            return JobEnded(
                FAILED, _failure(error, None if job is None else job.folder)
            )
        word = "finished before" if report.skipped else "done"
        speedup = report.summary["speedup"]
        told = "" if speedup is None else f"speed-up {speedup:.2f}x, "
        return JobEnded(OK, f"{word}, {told}{report.folder}")

    def _log(self, config: DictConfig, words: JobWords) -> SweepLog | None:
        """Return the log that is to be told of a job, and plan its sweep there.

        A job that runs alone is told only to a log that has planned it.
        """
        folder = _sweep_folder(config)
        if folder is None:
            return None
        log = SweepLog(folder)
        if HydraConfig.get().mode != RunMode.MULTIRUN:
            with suppress(TreespecError):
                return log if words in log.read().jobs else None
            return None
        if folder not in self._sweeps:
            plan = self._plan(words)
            log.plan(plan)
            self._sweeps[folder] = plan
            if os.getpid() == self._process:  # and not in one of a launcher's
                _tell_what_is_left(folder, plan)
        return log

    def _plan(self, words: JobWords) -> Plan:
        """Return the plan of the jobs that write to the same folder as this one."""
        jobs: list[JobWords] = []
        with suppress(HydraException):
            jobs = self._words.jobs()
        if words not in jobs:  # a sweeper that chooses as it goes
            return Plan(self._command, self._cwd, ())
        here = _places(words)
        own = tuple(job for job in jobs if _places(job) == here)
        return Plan(self._command, self._cwd, own)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a job that ended with an error."""
    from treespec.runner import LosslessViolationError  # noqa: PLC0415
    from treespec.sinks.run_folder import RunBusyError  # noqa: PLC0415

    if isinstance(error, RunBusyError):
        return BUSY
    if isinstance(error, TreespecError) and not isinstance(error, DiskError):
        return BAD_INPUT
    return NOT_LOSSLESS if isinstance(error, LosslessViolationError) else FAILED


def _failure(error: BaseException, folder: Path | None) -> str:
    """Return an error that nobody foresaw in a line, and where to look for it."""
    told = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if folder is not None and (folder / "status.json").is_file():
        return f"{told}; the traceback is in {folder}/status.json"
    frames = extract_tb(error.__traceback__)
    return f"{told} ({frames[-1].filename}, line {frames[-1].lineno})"


def _places(words: JobWords) -> list[str]:
    return [word for word in words if word.startswith(_PLACES)]


def _sweep_folder(config: DictConfig) -> Path | None:
    """Return where a configuration's runs go; ``None`` if that is no place."""
    from treespec.job import sweep_folder  # noqa: PLC0415

    try:
        return sweep_folder(config.output_root, config.sweep_name)
    except (TreespecError, OmegaConfBaseException):  # told when the job is built
        return None


def _tell_what_is_left(folder: Path, plan: Plan) -> None:
    from treespec.sweep_state import count_states, read_jobs  # noqa: PLC0415

    jobs = read_jobs(folder, plan.jobs)
    if any(job.state != "missing" for job in jobs):
        print(f"{folder}, so far: {count_states(jobs)}", flush=True)
