"""What is decoded next: prompts as token ids, their later turns as these come up."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from treespec.datasets.base import Prompt


def _no_turn(answer: str) -> Task | None:
    """Return what follows the answer to a prompt of one turn."""
    return None


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, or one turn of it, ready to decode.

    Attributes:
        id: Its name; with the run's seed it determines what the prompt draws.
        category: What kind of task it is.
        tokens: Its token ids.
        prompt: Where it comes from, with good answers; ``None`` if nobody judges it.
        turn: Which turn of its prompt it is, from 1.
        after: From plain decoding's answer to the next turn, if there is one.
    """

    id: str
    category: str
    tokens: tuple[int, ...]
    prompt: Prompt | None = None
    turn: int = 1
    after: Callable[[str], Task | None] = _no_turn


class Waiting:
    """The batches that are still to be decoded; later turns come as they are known."""

    def __init__(self, tasks: Sequence[Task], size: int) -> None:
        starts = range(0, len(tasks), size)
        self._batches = deque(list(tasks[start : start + size]) for start in starts)
        self._later: list[Task] = []

    def __iter__(self) -> Iterator[list[Task]]:
        while self._later or self._batches:
            batch = self._later or self._batches.popleft()
            self._later = []
            yield batch

    def answered(self, task: Task, answer: str) -> None:
        """Put a task's next turn, if there is one, into the next batch."""
        later = task.after(answer)
        if later is not None:
            self._later.append(later)


def prompt_seed(seed: int, prompt_id: str) -> int:
    """Return a prompt's own seed: no neighbour and no order can change it."""
    digest = hashlib.sha256(f"{seed}\0{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
