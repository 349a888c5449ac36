"""What a sink is told of a run, and the bracket that always tells it the end."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from treespec.metrics import Summary
from treespec.outcome import PromptOutcome


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What identifies a run and would let anyone repeat it.

    Attributes:
        run_key: Hash of what determines the result.
        sweep_name: The sweep that the run belongs to.
        folder: Where the run's files go.
        config: The resolved configuration: plain dicts, lists, strings and numbers.
        environment: Versions, device, threads, dtype, model files, git state.
        tags: Words to find the run by.
        is_timed: Whether its times so far are its own: no other job shared its device.
    """

    run_key: str
    sweep_name: str
    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    is_timed: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How a run ended.

    Attributes:
        status: ``done``, ``failed`` (an error) or ``interrupted`` (by the user).
        error: The error in one line.
        traceback: Where it came from.
    """

    status: Literal["done", "failed", "interrupted"]
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing of a part of a run.

    Attributes:
        title: What it shows; plain text.
        svg: The drawing, a document of its own.
    """

    title: str
    svg: str


def status_of(error: BaseException | None) -> RunStatus:
    """Return the status of a run that ended with ``error``, or with none."""
    if error is None:
        return RunStatus("done")
    return RunStatus(
        "interrupted" if isinstance(error, KeyboardInterrupt) else "failed",
        error=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )


class AbstractSink(ABC):
    """A place that records of one run after another are sent to."""

    @abstractmethod
    def check(self, folder: Path) -> None:
        """Refuse what cannot work, before any model is loaded.

        Args:
            folder: The run's folder, which may not exist yet.

        Raises:
            TreespecError: The sink's settings cannot work here.
        """

    @abstractmethod
    def open(self, run: RunInfo) -> None:
        """Begin a run."""

    @abstractmethod
    def prompt(self, outcome: PromptOutcome) -> None:
        """Take one finished prompt."""

    @abstractmethod
    def close(self, summary: Summary | None, status: RunStatus) -> None:
        """End the run.

        Args:
            summary: Its numbers; ``None`` if it did not get that far.
            status: How it ended.
        """


@dataclass(slots=True)
class Recording:
    """A run that is being told to its sinks.

    Attributes:
        sinks: The sinks that are open, in the order in which they are told.
        summary: The run's numbers, once they are known.
    """

    sinks: list[AbstractSink] = field(default_factory=list)
    summary: Summary | None = None

    def prompt(self, outcome: PromptOutcome) -> None:
        """Send one finished prompt to every sink."""
        for sink in self.sinks:
            sink.prompt(outcome)


@contextmanager
def recording(sinks: Sequence[AbstractSink], run: RunInfo) -> Iterator[Recording]:
    """Open the sinks, and close every one of them whatever happens in between.

    The run folder comes first in ``sinks``, so that no view can lose a result. Set
    ``summary`` of the yielded recording before leaving. An error passes through after
    the sinks have been told of it; with a summary already set they keep that as well.
    """
    record = Recording()
    error: BaseException | None = None
    try:
        for sink in sinks:
            sink.open(run)
            record.sinks.append(sink)
        yield record
    except BaseException as caught:
        error = caught
        raise
    finally:
        status = status_of(error)
        with ExitStack() as closing:
            for sink in reversed(record.sinks):
                closing.callback(sink.close, record.summary, status)
