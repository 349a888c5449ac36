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
class Prompt:
    """One task for the models.

    Attributes:
        id: Its name, unique in its dataset.
        category: What kind of task it is.
        turns: The user's messages; several make a conversation.
        chat: Whether the model's chat template applies; else ``turns`` is one raw text
            to continue.
        reference: What the dataset gives as a good answer, in the dataset's own form.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    chat: bool = True
    reference: object = None


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
