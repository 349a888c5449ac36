"""What a prompt is, and how a few are chosen from many."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from treespec.errors import TreespecError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CodeTest:
    """How a function is tested whose beginning is the prompt.

    Attributes:
        prompt: The code before the answer: imports, signature, docstring.
        test: Python code that defines ``check(candidate)``.
        entry_point: Name of the function.
    """

    prompt: str
    test: str
    entry_point: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task for the models.

    Attributes:
        id: Its name, unique in its dataset.
        category: What kind of task it is.
        turns: The user's messages; several make a conversation.
        chat: Whether the model's chat template applies; else ``turns`` is one raw text
            to continue.
        reference: What the dataset gives as a good answer, in the dataset's own form:
            a text, or a list with a text (or a list of equally good texts) per turn.
        code_test: How the answer is tested, if it is a function in Python.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    chat: bool = True
    reference: object = None
    code_test: CodeTest | None = None

    def references(self, turn: int) -> tuple[str, ...]:
        """Return the good answers to a turn, counted from 1: none, one or several.

        A list with one entry per turn belongs to the turns. Any other list of texts
        holds answers to the last turn.
        """
        given = self.reference
        last = turn == len(self.turns)
        if isinstance(given, list | tuple):
            if len(given) == len(self.turns):
                return _texts(given[turn - 1])
            return _texts(given) if last else ()
        return _texts(given) if last else ()


def _texts(given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,) if given.strip() else ()
    if isinstance(given, list | tuple):
        return tuple(text for text in given if isinstance(text, str) and text.strip())
    return ()


class AbstractDataset(ABC):
    """A list of prompts."""

    @abstractmethod
    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return ``num_prompts`` prompts, or all of them.

        Few prompts still cover all categories, and the choice is always the same. If
        there are fewer than asked for, all are returned and a warning is logged.

        Raises:
            TreespecError: The prompts cannot be read, or ``num_prompts`` is below 1.
        """


def choose(prompts: Sequence[Prompt], num_prompts: int | None) -> list[Prompt]:
    """Return the first prompts of every category in turn, in their original order.

    Raises:
        TreespecError: ``num_prompts`` is below 1.
    """
    if num_prompts is None:
        return list(prompts)
    if num_prompts < 1:
        raise TreespecError(
            f"num_prompts must be >= 1, or null for all, got {num_prompts}"
        )
    if num_prompts > len(prompts):
        _log.warning(
            "num_prompts=%d asks for more than there are: taking all %d prompts",
            num_prompts,
            len(prompts),
        )
    categories: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        categories.setdefault(prompt.category, []).append(prompt)
    rounds = zip_longest(*categories.values())
    in_turn = [prompt for row in rounds for prompt in row if prompt is not None]
    chosen = {prompt.id for prompt in in_turn[:num_prompts]}
    return [prompt for prompt in prompts if prompt.id in chosen]


def turn_id(prompt_id: str, turn: int) -> str:
    """Return the name of one turn of a prompt: the first has the prompt's own."""
    return prompt_id if turn == 1 else f"{prompt_id}/{turn}"
