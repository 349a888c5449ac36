"""Every sink that was opened is closed, with the truth about how it went."""

import pytest

from tests.sinks.runs import make_outcomes, make_run, record
from treespec.sinks.base import AbstractSink, recording


class NotingSink(AbstractSink):
    """Notes what it is told; can be made to fail."""

    def __init__(self, name, notes, fails_in=None):
        self.name, self.notes, self.fails_in = name, notes, fails_in

    def _note(self, what):
        self.notes.append(f"{self.name} {what}")
        if what.split()[0] == self.fails_in:
            raise RuntimeError(f"{self.name} broke")

    def check(self, folder):
        self._note("check")

    def open(self, run):
        self._note("open")

    def prompt(self, outcome):
        self._note(f"prompt {outcome.id}")

    def close(self, summary, status):
        self._note(f"close {status.status} {summary is not None}")


def test_sinks_are_told_in_order(tmp_path):
    notes = []
    sinks = [NotingSink("folder", notes), NotingSink("view", notes)]
    record(sinks, make_run(tmp_path), make_outcomes()[:1])
    assert notes == [
        "folder open",
        "view open",
        "folder prompt a",
        "view prompt a",
        "folder close done True",
        "view close done True",
    ]


def test_a_sink_that_fails_to_open_lets_the_others_close(tmp_path):
    notes = []
    sinks = [NotingSink("folder", notes), NotingSink("view", notes, "open")]
    with (
        pytest.raises(RuntimeError, match="view broke"),
        recording(sinks, make_run(tmp_path)),
    ):
        pass
    assert notes[-1] == "folder close failed False"


def test_a_sink_that_fails_to_close_lets_the_others_close(tmp_path):
    notes = []
    sinks = [NotingSink("folder", notes, "close"), NotingSink("view", notes)]
    with pytest.raises(RuntimeError, match="folder broke"):
        record(sinks, make_run(tmp_path), [])
    assert notes[-1] == "view close done True"
