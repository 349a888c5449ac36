"""The one error of the conformance kit, and how the errors of plug-ins become it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treespec.errors import TreespecError

OF_OTHERS = {"treespec", "torch", "numpy", *sys.stdlib_module_names}
"""Modules where an error ends up that a plug-in caused."""


class ConformanceError(TreespecError, AssertionError):
    """A plug-in breaks its contract; tells which part of it, and shows the case.

    The first line says what is wrong; the lines below it show the smallest case found.
    """


def told(error: BaseException) -> str:
    """Return what an error says in one line, and where the plug-in raised it."""
    says = " ".join(str(error).split())
    return f"{type(error).__name__}: {says} ({_place(error)})"


def _place(error: BaseException) -> str:
    """Return file and line of the innermost frame that is a plug-in's."""
    steps = list(traceback.walk_tb(error.__traceback__))
    own = [
        (frame, line)
        for frame, line in steps
        if frame.f_globals.get("__name__", "").partition(".")[0] not in OF_OTHERS
    ]
    frame, line = (own or steps)[-1]
    return f"{Path(frame.f_code.co_filename).name}:{line}"


@contextmanager
def reported(part: object, method: str = "", case: str = "") -> Iterator[None]:
    """Turn whatever a part raises into the kit's error.

    Args:
        part: The plug-in.
        method: What was called, for the message.
        case: What it was given, for the lines below the first.

    Raises:
        ConformanceError: The block raised something.
    """
    try:
        yield
    except ConformanceError:
        raise
    except (Exception, SystemExit) as error:  # an exit must not look like success
        name = type(part).__name__
        who = f"{name}: {method}" if method else name
        below = f"\n{case}" if case else ""
        raise ConformanceError(f"{who} raised {told(error)}{below}") from error
