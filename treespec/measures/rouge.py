"""ROUGE-L: how much of a reference comes in a text, in its order.

Its own twenty lines: the package of that name was released last in 2022, and brings a
tokenizer library along for words that a regular expression finds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from treespec.datasets.base import Prompt
from treespec.measures.base import AbstractQualityMeasure, check_margin
from treespec.outcome import Pooling

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class RougeL(AbstractQualityMeasure):
    """Mean over texts of ROUGE-L's F1, of 0 to 1; of several references the best.

    The longest common subsequence of the words, in lower case and without stemming, of
    the whole texts (Lin, ROUGE, 2004).

    Attributes:
        margin: The difference that would not matter.
    """

    margin: float = 0.02

    name: ClassVar[str] = "rouge_l"
    pooling: ClassVar[Pooling] = "mean"
    needs: ClassVar[str] = "a reference text"
    largest: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the margin."""
        check_margin(self.name, self.margin, self.largest)

    def check(self) -> None:
        """Accept everything: it needs no package."""

    def note(self) -> None:
        """Return nothing: there is nothing to know."""

    def applies(self, prompt: Prompt, turn: int) -> bool:
        """Return whether there is a reference with a word in it."""
        return any(_WORD.search(text) for text in prompt.references(turn))

    def parts(self, prompt: Prompt, turn: int, text: str) -> tuple[float, ...]:
        """Return the F1, and one for the text."""
        return (max(rouge_l(text, r) for r in prompt.references(turn)), 1.0)


def rouge_l(text: str, reference: str) -> float:
    """Return the F1 of the longest common subsequence of words."""
    words, wanted = (_WORD.findall(part.lower()) for part in (text, reference))
    common = _common_length(words, wanted)
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


def _common_length(left: Sequence[str], right: Sequence[str]) -> int:
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for place, other in enumerate(right, start=1):
            above = row[place]
            row[place] = diagonal + 1 if word == other else max(above, row[place - 1])
            diagonal = above
    return row[-1]
