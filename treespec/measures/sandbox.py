"""Runs a program that nobody has read, and comes back whatever it does.

The program gets a Python process of its own: no packages but the standard library, no
environment, an empty folder, little time, memory and output. On Linux the kernel keeps
it from opening other files (Landlock) and from making processes, sockets and signals
(seccomp); everywhere, Python's audit hook refuses the same. It has passed only if it
ran to its end and its process then says a word that the program was not given.

This stops accidents and crude attacks. For models that you have reason to fear, run the
whole of treespec in a virtual machine.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from treespec.errors import TreespecError, require_integer, require_number

CHILD = Path(__file__).with_name("sandbox_child.py")
LEAST_MEMORY_MB = 64
MOST_S = 86_400
_MOST_OUTPUT_BYTES = 1 << 20
_MOST_ANSWER_BYTES = 4096
_START_S = 3.0
"""Seconds that Python itself may need to start on a busy machine."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How a program ended.

    Attributes:
        passed: Whether it ran to its end without an error.
        reason: Why it did not, in a few words.
        kept_in_by: What kept it in, in words.
    """

    passed: bool
    reason: str = ""
    kept_in_by: str = ""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Where programs are run.

    Attributes:
        timeout_s: Seconds that a program has, of the processor and of the clock.
        memory_mb: Megabytes of address space that its process has.
    """

    timeout_s: float
    memory_mb: int

    def __post_init__(self) -> None:
        """Check both limits."""
        require_number("timeout_s", self.timeout_s)
        if not 0 < self.timeout_s <= MOST_S:
            raise TreespecError(
                f"timeout_s must be above 0 and at most {MOST_S}, got {self.timeout_s}"
            )
        require_integer("memory_mb", self.memory_mb, LEAST_MEMORY_MB)

    def run(self, program: str) -> Trial:
        """Run a program; nothing that it does is raised."""
        word = secrets.token_hex(16)
        order = {
            "program": program,
            "word": word,
            "timeout_s": self.timeout_s,
            "memory_bytes": self.memory_mb << 20,
            "output_bytes": _MOST_OUTPUT_BYTES,
        }
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile() as output,
        ):
            reading, writing = os.pipe()
            with os.fdopen(reading, "rb") as answers:
                try:
                    child = _start(folder, output.fileno(), writing)
                finally:
                    os.close(writing)
                in_time = _finish(child, json.dumps(order), self.timeout_s + _START_S)
                # Read without waiting: a process that got away may hold the other end.
                os.set_blocking(reading, False)
                with suppress(BlockingIOError):
                    answer = answers.read(_MOST_ANSWER_BYTES) or b""
        return _trial(answer.decode(errors="replace"), word, child.returncode, in_time)


def _start(folder: str, output: int, writing: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        # Isolated, without site packages, without writing compiled files.
        [sys.executable, "-I", "-S", "-B", str(CHILD), str(writing)],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=folder,
        env={},
        pass_fds=(writing,),
        start_new_session=True,
        text=True,
    )


def _finish(child: subprocess.Popen[str], order: str, seconds: float) -> bool:
    """Wait for a child, and end it and its children; return whether it was in time."""
    in_time = True
    try:
        child.communicate(order, timeout=seconds)
    except subprocess.TimeoutExpired:
        in_time = False
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.kill()
        child.wait()
    return in_time


def _trial(answer: str, word: str, code: int, in_time: bool) -> Trial:
    kept_in_by, _, verdict = answer.partition("\n")
    if verdict == word:
        return Trial(passed=True, kept_in_by=kept_in_by)
    if not in_time:
        return Trial(passed=False, reason="out of time")
    if code == -signal.SIGXCPU:
        return Trial(passed=False, reason="out of time")
    if verdict:
        return Trial(passed=False, reason=" ".join(verdict.split())[:200])
    return Trial(passed=False, reason=f"its process ended with code {code}")
