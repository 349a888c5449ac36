"""The ``treespec`` command: Hydra composes, ``build`` builds, ``runner`` runs.

Hydra's own errors become one line that names the key. A job that fails does not take
the others of a sweep with it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from warnings import catch_warnings, filterwarnings

import hydra
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from treespec.errors import TreespecError
from treespec.explaining import config_folder, explain_any
from treespec.pipes import outlive_readers, say
from treespec.sweeping import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    MULTIRUN,
    OK,
    CommandWords,
    Jobs,
    check_config_path,
    typed_overrides,
)
from treespec.verbs import MEASURES, READERS, Attempt, read

# On 1.3 no version_base means the ways of 1.1, and a store replaces without a word.
_IS_1_3 = version("hydra-core").startswith("1.3")
VERSION_BASE: dict[str, Any] = {"version_base": "1.3"} if _IS_1_3 else {}
_REPLACE: dict[str, Any] = {} if _IS_1_3 else {"replace": True}

_HELP = """\
treespec decodes prompts with and without tree speculation and compares the two.

  treespec                                        the main job, on a small real model
  treespec policy=chain controller.max_depth=5    choose parts, change keys
  treespec -m policy=chain,top_k_tree             a sweep
  treespec experiment=qwen_chain5                 a named set of changes
  treespec --cfg job                              show the configuration, run nothing
  treespec --config-path RUN_FOLDER               repeat a run from its config.yaml
  treespec calibrate                              measure acceptance by rank and what
                    forwards cost, for policy=optimal_tree and calibrated_tree
  treespec profile                                measure what forwards of this pair
                    cost on this machine, and keep it for others to plan by
  treespec check acceptance._target_=my_pkg.Rule  is it lossless, does it keep its
                    contract? also policy, drafter, controller; several at once
  treespec collect outputs/SWEEP                  a sweep as one table: what is done,
                    failed and missing, and what to type to run the rest
  treespec feasibility FILE...                    will speculation pay on texts like
                    these? from the text alone, or with pair=... from its models
  treespec regret outputs/SWEEP                   how far a planner was from the best
                    fixed strategy of a sweep, and from all-knowing drafts
  treespec view RUN_FOLDER                        the trees of a run with trace=nodes as
                    a page; as text or a picture: treespec view --help
  treespec upload RUN_OR_SWEEP                    finished runs to Weights & Biases,
                    from their files alone

Choose a part with group=option:

$APP_CONFIG_GROUPS
Change a key with key=value; conf/ explains each one:

$CONFIG
"""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How one job of a command ended.

    Attributes:
        number: Its place in the sweep.
        overrides: What the user typed for it.
        code: Its exit code.
        message: Its result or its error in one line.
    """

    number: int
    overrides: tuple[str, ...]
    code: int
    message: str


def main() -> None:
    """Run the command line and exit with its code."""
    outlive_readers()
    # What a scheduler or `kill` sends ends a run as Ctrl-C does, with its summary.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run_command())


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: What would be typed after ``treespec``; ``None`` takes ``sys.argv``.
    """
    if arguments is None:
        return _run_command()
    # Hydra reads sys.argv and nothing else.
    typed, sys.argv = sys.argv, ["treespec", *arguments]
    try:
        return _run_command()
    finally:
        sys.argv = typed


def _run_command() -> int:
    if not _has_working_directory():
        say("error: the working directory does not exist any more; cd to one that does")
        return BAD_INPUT
    verb, words = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if verb in READERS:
        return read(verb, words)
    jobs = Jobs(sys.argv[1:])
    attempt: Attempt = jobs.attempt
    if verb in MEASURES:
        prepared = MEASURES[verb](words)
        if isinstance(prepared, int):
            return prepared
        attempt, sys.argv[1:] = prepared.attempt, prepared.words
    with TemporaryDirectory(prefix="treespec-") as scratch:
        _prepare(scratch)
        try:
            check_config_path(CommandWords.of(sys.argv[1:]))
        except TreespecError as error:
            say(f"error: {error}")
            return BAD_INPUT
        return _run_hydra(attempt, jobs)


def _run_hydra(attempt: Attempt, jobs: Jobs) -> int:
    ends: list[JobEnd] = []
    process = os.getpid()

    def task(config: DictConfig) -> None:
        end = _run_job(config, attempt)
        ends.append(end)
        # A launcher that works in other processes learns of a failure only like this.
        if end.code != OK and os.getpid() != process:
            raise RuntimeError(end.message)

    folder = config_folder()
    trouble = _call_hydra(task, folder)
    if trouble == BAD_INPUT:
        return BAD_INPUT
    if trouble is not None or not ends:
        jobs.find_sweep(folder, VERSION_BASE)
    told = jobs.report()
    if trouble is not None:
        return trouble if trouble == INTERRUPTED else told or trouble
    if told is None and len(ends) > 1:
        _show_ends(ends)
    return max((end.code for end in ends), default=OK) if told is None else told


def _call_hydra(task: Callable[[DictConfig], None], folder: Path) -> int | None:
    """Let Hydra run all jobs; return the exit code of what is no job's own trouble."""
    try:
        with catch_warnings():
            filterwarnings("error", message=r"provider=hydra\.searchpath")
            hydra.main(config_path=str(folder), config_name="config", **VERSION_BASE)(
                task
            )()
    except UserWarning as warning:
        say(f"error: hydra.searchpath: {str(warning).rpartition(', ')[2]}")
        return BAD_INPUT
    except KeyboardInterrupt:
        say("interrupted: prompts that were finished, if any, are in the run's folder")
        return INTERRUPTED
    except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
        say(f"error: {explain_any(error)}")
        return BAD_INPUT
    except RuntimeError as error:
        say(f"error: {' '.join(str(error).split())}")
        return FAILED
    return None


def _run_job(config: DictConfig, attempt: Attempt) -> JobEnd:
    """Run one job; whatever it raises but an interrupt becomes its end."""
    number, overrides = _identity()
    if number is not None:
        print(f"\n[{number}] {' '.join(overrides)}", flush=True)
    code, message = attempt(config)
    if code != OK:
        say(f"error: {message}")
    return JobEnd(number or 0, overrides, code, message)


def _identity() -> tuple[int | None, tuple[str, ...]]:
    """Return the job's number, ``None`` outside of a sweep, and its overrides."""
    settings = HydraConfig.get()
    overrides = tuple(typed_overrides())
    if settings.mode != RunMode.MULTIRUN:
        return None, overrides
    return int(settings.job.num), overrides


def _show_ends(ends: list[JobEnd]) -> None:
    """Tell the jobs' ends, each by the overrides that not all of them share."""
    num_failed = sum(end.code != OK for end in ends)
    shared = set.intersection(*(set(end.overrides) for end in ends))
    print(f"\n{len(ends)} jobs: {len(ends) - num_failed} ok, {num_failed} failed")
    for end in ends:
        word = "ok    " if end.code == OK else "failed"
        own = " ".join(text for text in end.overrides if text not in shared)
        print(f"  [{end.number}] {word} {own}: {end.message}")
    sys.stdout.flush()


def _prepare(scratch: str) -> None:
    """Set Hydra up: no logs of its own, errors for us to tell.

    Args:
        scratch: Folder for what Hydra insists on writing about a sweep.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if os.getcwd() not in sys.path:  # a console script leaves it out
        sys.path.append(os.getcwd())
    sys.argv[1:] = _flags_first(_absolute_config_path(sys.argv[1:]))
    settings = HydraConf()
    settings.run.dir = "."
    settings.sweep.dir = scratch
    if any(argument.startswith("hydra/launcher=") for argument in sys.argv):
        # Workers elsewhere must see what the launcher leaves for them.
        settings.sweep.dir = "${output_root}/${sweep_name}"
    settings.sweep.subdir = "."
    settings.output_subdir = None
    settings.job.chdir = False
    own = {"hydra_logging": "none", "job_logging": "none", "help": "treespec"}
    settings.defaults = [
        {name: own.get(name, option) for name, option in entry.items()}
        if isinstance(entry, dict)
        else entry
        for entry in settings.defaults
    ]
    store = ConfigStore.instance()
    # In the store and not in conf/, so that it also holds for a run's config.yaml.
    store.store(group="hydra", name="config", node=settings, **_REPLACE)
    store.store(
        group="hydra/help",
        name="treespec",
        node={"app_name": "treespec", "header": "", "footer": "", "template": _HELP},
        **_REPLACE,
    )


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _absolute_config_path(arguments: list[str]) -> list[str]:
    """Read ``--config-path`` as seen from the working directory, not from our code."""
    found, is_next = [], False
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if is_next:
            found.append(str(Path(argument).expanduser().absolute()))
        elif flag in {"--config-path", "-cp"} and equals:
            found.append(f"{flag}={Path(value).expanduser().absolute()}")
        else:
            found.append(argument)
        is_next = argument in {"--config-path", "-cp"}
    return found


def _flags_first(arguments: list[str]) -> list[str]:
    """Let ``-m`` stand anywhere: argparse takes overrides on one side of it only."""
    return sorted(arguments, key=lambda argument: argument not in MULTIRUN)
