"""The ``treespec`` command: Hydra composes, ``build`` builds, ``runner`` runs.

Hydra's own errors become one line that names the key. A job that fails does not take
the others of a sweep with it.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, filterwarnings

import hydra
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from treespec.errors import TreespecError
from treespec.pipes import outlive_readers
from treespec.sweeping import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    MULTIRUN,
    OK,
    Jobs,
    typed_job,
    typed_overrides,
    typed_targets,
)

if TYPE_CHECKING:
    from treespec.calibrate import CalibrationReport

CHECK, CALIBRATE, PROFILE = "check", "calibrate", "profile"
"""First words that run the conformance kit or a measurement instead of a job."""
REGRET, VIEW, COLLECT, UPLOAD = "regret", "view", "collect", "upload"
"""First words that read finished runs; they take no configuration."""
FEASIBILITY = "feasibility"
"""First word that predicts from texts, with or without a pair."""
Attempt = Callable[[DictConfig], tuple[int, str]]
"""From a configuration to an exit code, and a message in one line."""

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
        _say(
            "error: the working directory does not exist any more; cd to one that does"
        )
        return BAD_INPUT
    readers = {
        REGRET: _show_regret,
        COLLECT: _run_collect,
        VIEW: _run_view,
        UPLOAD: _run_upload,
    }
    if sys.argv[1:] and sys.argv[1] in readers:
        return readers[sys.argv[1]](sys.argv[2:])
    jobs = Jobs(sys.argv[1:])
    attempt: Attempt = jobs.attempt
    if sys.argv[1:2] == [CHECK]:
        if not set(MULTIRUN).isdisjoint(sys.argv):
            _say(
                "error: treespec check takes no -m; name several parts at once, or "
                "run it once for each choice"
            )
            return BAD_INPUT
        attempt, sys.argv[1:] = _attempt_check, _custom_parts(sys.argv[2:])
    if sys.argv[1:2] == [CALIBRATE]:
        attempt, sys.argv[1:] = _attempt_calibrate, _comb_policy(sys.argv[2:])
    if sys.argv[1:2] == [PROFILE]:
        attempt, sys.argv[1:] = _attempt_profile, sys.argv[2:]
    if sys.argv[1:2] == [FEASIBILITY]:
        predict = _feasibility(sys.argv[2:])
        if isinstance(predict, int):
            return predict
        attempt, sys.argv[1:] = predict
    with TemporaryDirectory(prefix="treespec-") as scratch:
        _prepare(scratch)
        return _run_hydra(attempt, jobs)


def _run_view(arguments: list[str]) -> int:
    """Show a run that is done: no configuration is composed, no job is run."""
    from treespec.analysis.viewer import view  # noqa: PLC0415

    try:
        shown = view(arguments)
    except TreespecError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    encoding = sys.stdout.encoding or "utf-8"
    print(shown.encode(encoding, "replace").decode(encoding), flush=True)
    return OK


def _run_upload(arguments: list[str]) -> int:
    """Write finished runs to W&B; return the exit code."""
    from treespec.upload import HELP, upload  # noqa: PLC0415

    if not {"-h", "--help"}.isdisjoint(arguments):
        print(HELP, flush=True)
        return OK
    try:
        done = upload(arguments)
    except TreespecError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    print(done, flush=True)
    return FAILED if done.failed else OK


def _run_collect(arguments: list[str]) -> int:
    """Make a table of a sweep; return 0 only if all of it is done."""
    try:
        from treespec.collect import collect_words  # noqa: PLC0415

        sweep = collect_words(arguments)
    except TreespecError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    except ModuleNotFoundError as error:  # pandas comes with an extra
        _say(f"error: collect needs {error.name}: pip install 'treespec[analysis]'")
        return BAD_INPUT
    print(sweep.render(os.getcwd()), flush=True)
    return OK if sweep.is_done else FAILED


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
        _say(f"error: hydra.searchpath: {str(warning).rpartition(', ')[2]}")
        return BAD_INPUT
    except KeyboardInterrupt:
        _say("interrupted: prompts that were finished are in the run's folder")
        return INTERRUPTED
    except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
        _say(f"error: {_explain_any(error)}")
        return BAD_INPUT
    except RuntimeError as error:
        _say(f"error: {' '.join(str(error).split())}")
        return FAILED
    return None


def _explain_any(error: Exception) -> str:
    """Return what stopped Hydra as one line with the way out."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return explain(error)
    if isinstance(error, OSError):  # a launcher that needs a folder of its own
        return f"output_root: {error}; choose another place with output_root=DIR"
    # Hydra's word for a group that is set to null.
    return f"{explain(error)}; write group=OPTION, see treespec --help"


def explain(error: Exception) -> str:
    """Return Hydra's or OmegaConf's error as one line with the way out."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _explain_missing(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: write key=value, with quotes if needed"
    cause = error.__cause__
    lines = str(error).splitlines()
    first = lines[0].rstrip(".") if lines else type(error).__name__
    if first.startswith("Could not override"):
        return _explain_unknown_key(first.split("'")[1], cause)
    if isinstance(cause, OmegaConfBaseException):
        return f"{first}: {str(cause).splitlines()[0]}"
    return ". ".join(line.strip() for line in (first, *lines[1:2]))


def _explain_missing(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).rpartition("/")
    if not error.options:
        return f"there is no configuration {error.missing_cfg_file!r}"
    options = sorted(error.options)
    close = difflib.get_close_matches(option, options, n=1)
    hint = f" Did you mean {group}={close[0]}?" if close else ""
    return f"unknown {group}={option}.{hint} Available: {', '.join(options)}"


def _explain_unknown_key(key: str, cause: BaseException | None) -> str:
    node = getattr(cause, "parent_node", None)
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    prefix = key.rpartition(".")[0]
    known = [f"{prefix}.{name}" if prefix else name for name in names]
    known = [n for n in known if n != "hydra" and not n.endswith("_target_")]
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    listed = f" Available: {', '.join(known)}." if known else ""
    own = f" An argument of a class of yours takes a +: +{key}=VALUE" if prefix else ""
    return f"unknown key {key}.{hint}{listed}{own}"


def _run_job(config: DictConfig, attempt: Attempt) -> JobEnd:
    """Run one job; whatever it raises but an interrupt becomes its end."""
    number, overrides = _identity()
    if number is not None:
        print(f"\n[{number}] {' '.join(overrides)}", flush=True)
    code, message = attempt(config)
    if code != OK:
        _say(f"error: {message}")
    return JobEnd(number or 0, overrides, code, message)


def _attempt_check(config: DictConfig) -> tuple[int, str]:
    """Check the parts that the user named, as an attempt at a job."""
    from treespec.build import build_parts  # noqa: PLC0415
    from treespec.conformance import check_parts, named_parts, toy_models  # noqa: PLC0415

    try:
        names = named_parts(typed_overrides())
        parts = build_parts(config, names, toy_models(), typed_targets())
        failures = check_parts(parts)
    except TreespecError as error:
        return BAD_INPUT, str(error)
    except Exception as error:  # what a class of the user raises where none may
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return (FAILED, "\nerror: ".join(failures)) if failures else (OK, "")


def _attempt_calibrate(config: DictConfig) -> tuple[int, str]:
    """Measure what static trees are chosen by, as an attempt at a job."""
    from treespec.calibrate import calibrate  # noqa: PLC0415

    try:
        report = calibrate(typed_job(config))
    except TreespecError as error:
        return BAD_INPUT, str(error)
    except Exception as error:  # one job must not take the others with it
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"\n{report}\n\n{report.path}")
    if report.plan is not None:
        print(f"next: {_next_command(report)}", flush=True)
    return OK, f"done, {report.path}"


def _show_regret(arguments: list[str]) -> int:
    """Compare the runs of a sweep folder; return the exit code."""
    from treespec.regret_report import regret_text  # noqa: PLC0415

    try:
        print(regret_text(arguments), flush=True)
    except TreespecError as error:
        _say(f"error: {error}")
        return BAD_INPUT
    return OK


def _feasibility(arguments: list[str]) -> int | tuple[Attempt, list[str]]:
    """Predict from text alone and return the exit code.

    With a pair return the attempt, and the configuration to compose for it.
    """
    from treespec.feasibility_report import (  # noqa: PLC0415
        pair_report,
        parse_request,
        text_report,
    )

    try:
        request = parse_request(arguments)
        if not request.overrides:
            print(text_report(request), flush=True)
            return OK
    except TreespecError as error:
        _say(f"error: {error}")
        return BAD_INPUT

    def attempt(config: DictConfig) -> tuple[int, str]:

        try:
            report = pair_report(request, typed_job(config))
        except TreespecError as error:
            return BAD_INPUT, str(error)
        except Exception as error:  # one job must not take the others with it
            return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"
        print(f"\n{report}", flush=True)
        return OK, report.splitlines()[-1]

    return attempt, ["num_prompts=1", *request.overrides]


def _attempt_profile(config: DictConfig) -> tuple[int, str]:
    """Measure what forwards cost, or find it in the cache, as an attempt at a job."""
    from treespec.profile_plot import plot_kept  # noqa: PLC0415
    from treespec.profile_report import profile_of_job, render_profile  # noqa: PLC0415

    try:
        kept = profile_of_job(typed_job(config))
        plot = plot_kept(kept)
    except TreespecError as error:
        return BAD_INPUT, str(error)
    except Exception as error:  # one job must not take the others with it
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"\n{render_profile(kept.profile)}\n\n{kept.note}\n{kept.path}")
    print(plot, flush=True)
    return OK, f"{kept.note}, {kept.path}"


def _next_command(report: CalibrationReport) -> str:
    """Return what to type to decode with the tree that a calibration recommends."""
    assert report.plan is not None
    shape = report.plan.shape
    replaced = re.compile(r"[+~]*(policy|controller)[.=]")
    kept = [text for text in typed_overrides() if not replaced.match(text)]
    own = [
        "policy=optimal_tree",
        f"policy.calibration={report.path.absolute()}",
        f"policy.proposal={report.proposal}",
        f"controller.max_depth={shape.depth}",
        f"controller.max_width={shape.width}",
        f"controller.max_nodes={shape.num_nodes}",
    ]
    return shlex.join(["treespec", *kept, *own])


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


def _custom_parts(arguments: list[str]) -> list[str]:
    """Let a ``_target_`` alone choose the empty option of its group.

    Otherwise a class of the user would be given the keys of the group's default.
    """
    keys = {argument.partition("=")[0].lstrip("+") for argument in arguments}
    targets = [key.split(".") for key in keys if key.endswith("._target_")]
    groups = [words[0] for words in targets if len(words) == 2]
    chosen = [f"{group}=custom" for group in sorted(groups) if group not in keys]
    return chosen + arguments


def _comb_policy(arguments: list[str]) -> list[str]:
    """Measure with a comb unless another policy is named."""
    named = any(argument.startswith("policy=") for argument in arguments)
    return arguments if named else ["policy=comb_tree", *arguments]


def config_folder() -> Path:
    """Return ``conf/``: inside the package if installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    folders = [package / "conf", package.parent / "conf"]
    return next(f for f in folders if (f / "config.yaml").is_file())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
