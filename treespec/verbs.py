"""First words of the command, and what each does instead of running a job.

Some read finished runs and take no configuration (``READERS``); others measure or check
what a configuration names (``MEASURES``).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import getcwd
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from treespec.errors import TreespecError
from treespec.pipes import say
from treespec.sweeping import (
    BAD_INPUT,
    FAILED,
    MULTIRUN,
    OK,
    typed_job,
    typed_overrides,
    typed_targets,
)

if TYPE_CHECKING:
    from treespec.calibrate import CalibrationReport

Attempt = Callable[[DictConfig], tuple[int, str]]
"""From a configuration to an exit code, and a message in one line."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader found: a text, and the exit code."""

    text: str
    code: int = OK


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be attempted.

    Attributes:
        attempt: What is done with the configuration.
        words: What it is composed of.
    """

    attempt: Attempt
    words: list[str]


def read(verb: str, words: list[str]) -> int:
    """Show what a reader makes of its words; return the exit code."""
    try:
        shown = READERS[verb](words)
    except TreespecError as error:
        say(f"error: {error}")
        return BAD_INPUT
    encoding = sys.stdout.encoding or "utf-8"
    print(shown.text.encode(encoding, "replace").decode(encoding), flush=True)
    return shown.code


def attempted(work: Callable[[], str]) -> tuple[int, str]:
    """Return how some work ended; whatever it raises but an interrupt is its end."""
    try:
        return OK, work()
    except TreespecError as error:
        return BAD_INPUT, str(error)
    except Exception as error:  # one job must not take the others with it
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _view(words: Sequence[str]) -> Shown:
    from treespec.analysis.viewer import view  # noqa: PLC0415 (seconds, as all below)

    return Shown(view(words))


def _upload(words: Sequence[str]) -> Shown:
    from treespec.upload import HELP, upload  # noqa: PLC0415

    if not {"-h", "--help"}.isdisjoint(words):
        return Shown(HELP)
    done = upload(words)
    return Shown(str(done), FAILED if done.failed else OK)


def _collect(words: Sequence[str]) -> Shown:
    try:
        from treespec.collect import collect_words  # noqa: PLC0415

        sweep = collect_words(words)
    except ModuleNotFoundError as error:  # pandas comes with an extra
        raise TreespecError(
            f"collect needs {error.name}: pip install 'treespec[analysis]'"
        ) from error
    return Shown(sweep.render(getcwd()), OK if sweep.is_done else FAILED)


def _regret(words: Sequence[str]) -> Shown:
    from treespec.regret_report import regret_text  # noqa: PLC0415

    return Shown(regret_text(words))


def _check(words: list[str]) -> Prepared | int:
    """Check the parts that the user named."""
    if not set(MULTIRUN).isdisjoint(words):
        say(
            "error: treespec check takes no -m; name several parts at once, or "
            "run it once for each choice"
        )
        return BAD_INPUT
    return Prepared(_attempt_check, custom_parts(words))


def _attempt_check(config: DictConfig) -> tuple[int, str]:
    from treespec.build import build_parts  # noqa: PLC0415
    from treespec.conformance import check_parts, named_parts, toy_models  # noqa: PLC0415

    def work() -> str:
        names = named_parts(typed_overrides())
        parts = build_parts(config, names, toy_models(), typed_targets())
        return "\nerror: ".join(check_parts(parts))

    code, failures = attempted(work)
    return (FAILED if failures and code == OK else code), failures


def custom_parts(words: list[str]) -> list[str]:
    """Let a ``_target_`` alone choose the empty option of its group.

    Otherwise a class of the user would be given the keys of the group's default.
    """
    keys = {word.partition("=")[0].lstrip("+") for word in words}
    targets = [key.split(".") for key in keys if key.endswith("._target_")]
    groups = [parts[0] for parts in targets if len(parts) == 2]
    chosen = [f"{group}=custom" for group in sorted(groups) if group not in keys]
    return chosen + words


def _calibrate(words: list[str]) -> Prepared:
    """Measure what static trees are chosen by, with a comb unless told otherwise."""
    named = any(word.startswith("policy=") for word in words)
    return Prepared(
        _attempt_calibrate, words if named else ["policy=comb_tree", *words]
    )


def _attempt_calibrate(config: DictConfig) -> tuple[int, str]:
    from treespec.calibrate import calibrate  # noqa: PLC0415

    def work() -> str:
        report = calibrate(typed_job(config))
        print(f"\n{report}\n\n{report.path}")
        if report.plan is not None:
            print(f"next: {_next_command(report)}", flush=True)
        return f"done, {report.path}"

    return attempted(work)


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


def _profile(words: list[str]) -> Prepared:
    """Measure what forwards cost, or find it in the cache."""
    return Prepared(_attempt_profile, words)


def _attempt_profile(config: DictConfig) -> tuple[int, str]:
    from treespec.profile_plot import plot_kept  # noqa: PLC0415
    from treespec.profile_report import profile_of_job, render_profile  # noqa: PLC0415

    def work() -> str:
        kept = profile_of_job(typed_job(config))
        plot = plot_kept(kept)
        print(f"\n{render_profile(kept.profile)}\n\n{kept.note}\n{kept.path}")
        print(plot, flush=True)
        return f"{kept.note}, {kept.path}"

    return attempted(work)


def _feasibility(words: list[str]) -> Prepared | int:
    """Predict from text alone, or with a pair."""
    from treespec.feasibility_report import (  # noqa: PLC0415
        pair_report,
        parse_request,
        text_report,
    )

    try:
        request = parse_request(words)
        if not request.overrides:
            print(text_report(request), flush=True)
            return OK
    except TreespecError as error:
        say(f"error: {error}")
        return BAD_INPUT

    def attempt(config: DictConfig) -> tuple[int, str]:
        def work() -> str:
            report = pair_report(request, typed_job(config))
            print(f"\n{report}", flush=True)
            return report.splitlines()[-1]

        return attempted(work)

    return Prepared(attempt, ["num_prompts=1", *request.overrides])


READERS: Mapping[str, Callable[[list[str]], Shown]] = {
    "regret": _regret,
    "collect": _collect,
    "view": _view,
    "upload": _upload,
}
"""What reads finished runs."""

MEASURES: Mapping[str, Callable[[list[str]], Prepared | int]] = {
    "check": _check,
    "calibrate": _calibrate,
    "profile": _profile,
    "feasibility": _feasibility,
}
"""What prepares an attempt at a configuration, or ends with an exit code."""
