"""Does the code that a model wrote pass its tests? Running it is asked for, never given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from treespec.datasets.base import CodeTest, Prompt
from treespec.errors import TreespecError
from treespec.measures.base import AbstractQualityMeasure, check_margin
from treespec.measures.sandbox import Sandbox
from treespec.outcome import Pooling

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_END = re.compile(r"\n(?=[^\s)\]}])")
_GOOD = "import collections, heapq, math, random, re, string, typing\n"
_KEY = "quality.pass_at_1"


@dataclass(frozen=True, slots=True)
class PassAtOne(AbstractQualityMeasure):
    """Share of the functions that pass their tests, one text per task (2107.03374).

    A raw completion ends where its indentation does. An answer from a chat is its first
    block of code, and may lean on the code of the prompt.

    Attributes:
        execute_code: Whether code that a model wrote may be run.
        timeout_s: Seconds after which a program has failed.
        memory_mb: Megabytes that it may have.
        margin: The difference that would not matter.
    """

    execute_code: bool = False
    timeout_s: float = 5.0
    memory_mb: int = 1024
    margin: float = 0.05
    sandbox: Sandbox = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "pass_at_1"
    pooling: ClassVar[Pooling] = "mean"
    needs: ClassVar[str] = "a test, such as those of dataset=humaneval"
    largest: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check all values."""
        check_margin(self.name, self.margin, self.largest)
        if not isinstance(self.execute_code, bool):
            raise TreespecError(
                f"execute_code must be true or false, got {self.execute_code!r}"
            )
        sandbox = Sandbox(self.timeout_s, self.memory_mb)
        object.__setattr__(self, "sandbox", sandbox)

    def check(self) -> None:
        """Require the permission, and a sandbox in which sound code passes."""
        if not self.execute_code:
            raise TreespecError(
                f"{_KEY} runs code that a model wrote, on this machine: give "
                "execute_code=true to allow it, or leave it out"
            )
        trial = self.sandbox.run(_GOOD)
        if not trial.passed:
            raise TreespecError(
                f"{_KEY}: sound code fails in the sandbox here ({trial.reason}); raise "
                f"{_KEY}.timeout_s or {_KEY}.memory_mb, or leave {_KEY} out"
            )

    def note(self) -> str:
        """Warn, and say what keeps the code in."""
        return (
            "quality=pass_at_1 runs code that the model wrote, with your rights, kept in "
            f"by {self.sandbox.run(_GOOD).kept_in_by}; that stops accidents, and is no "
            "proof against malice"
        )

    def applies(self, prompt: Prompt, turn: int) -> bool:
        """Return whether the prompt comes with tests."""
        return prompt.code_test is not None

    def parts(self, prompt: Prompt, turn: int, text: str) -> tuple[float, ...]:
        """Return whether the tests pass, and one for the text."""
        assert prompt.code_test is not None
        program = program_of(prompt.code_test, text, chat=prompt.chat)
        return (float(self.sandbox.run(program).passed), 1.0)


def _compiles(code: str) -> bool:
    try:
        compile(code, "prompt", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def program_of(test: CodeTest, text: str, *, chat: bool) -> str:
    """Return the program that a text makes, with its tests.

    Args:
        test: The tests.
        text: What the model wrote.
        chat: Whether it is an answer, not a continuation of the prompt.
    """
    if chat:
        block = _BLOCK.search(text)
        # The prompt's own function has a docstring for a body; the answer's replaces it.
        before = test.prompt if _compiles(test.prompt) else ""
        code = f"{before}\n\n{block[1] if block else text}\n"
    else:
        # What follows the function at the margin is a new thought of the model's.
        code = test.prompt + _END.split(text, maxsplit=1)[0] + "\n"
    return f"{code}\n{test.test}\ncheck({test.entry_point})\n"
