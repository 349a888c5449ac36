"""Who pipes the output into a pager that is closed gets no error, and no less work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import sys
from treespec.pipes import outlive_readers
outlive_readers()
for number in range(3):
    print("line", number, flush=True)
    print("line", number, file=sys.stderr, flush=True)
open(sys.argv[1], "w").write("all was done")
"""


def ended_unread(*arguments: str, errors_too: bool = False) -> tuple[int, str]:
    """Return exit code and errors of a program whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, *arguments],
            stdout=writer,
            stderr=writer if errors_too else subprocess.PIPE,
            check=False,
            text=True,
        )
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr or ""


@pytest.mark.parametrize("errors_too", [False, True])
def test_work_goes_on_when_nobody_reads_of_it(tmp_path: Path, errors_too) -> None:
    """A run that decoded for minutes failed at the last line, its table."""
    done = tmp_path / "done"
    code, errors = ended_unread("-c", WORK, str(done), errors_too=errors_too)
    assert code == 0
    assert "Error" not in errors
    assert done.read_text() == "all was done"


@pytest.mark.parametrize("words", [["--help"], ["view", "--help"], ["regret", "-h"]])
def test_help_may_be_read_in_part(words: list[str]) -> None:
    assert ended_unread("-m", "treespec", *words) == (0, "")


def test_what_is_read_arrives(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WORK, str(tmp_path / "done")],
        capture_output=True,
        check=True,
        text=True,
    )
    assert ended.stdout == ended.stderr == "line 0\nline 1\nline 2\n"
