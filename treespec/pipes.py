"""What is said to the user, and that it outlives whoever reads it.

``treespec ... | head`` is no failure, and neither is a terminal that lacks a letter.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def outlive_readers() -> None:
    """Let this process go on when nobody reads its output any more.

    A pager that is closed has seen enough. What decodes meanwhile must not fail for it,
    and a sweep must not lose the jobs that are left.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        is_own = stream is getattr(sys, f"__{name}__")
        if is_own and isinstance(stream, io.TextIOWrapper):  # None if it was closed
            setattr(sys, name, _patient(stream))


class _Pipe(io.FileIO):
    """A file descriptor that takes everything, also once its reader has gone."""

    def write(self, data: Any, /) -> int:
        """Write, or drop what nobody reads."""
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def _patient(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    raw = _Pipe(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def say(text: str) -> None:
    """Tell the user something that is no result."""
    print(text, file=sys.stderr, flush=True)
