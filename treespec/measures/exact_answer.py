"""Is the number at the end of an answer the right one?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

from treespec.datasets.base import Prompt
from treespec.measures.base import AbstractQualityMeasure, check_margin
from treespec.outcome import Pooling

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARK = "####"


@dataclass(frozen=True, slots=True)
class ExactAnswer(AbstractQualityMeasure):
    """Share of the answers whose number is that of the reference, as in GSM8K.

    The number behind the last ``####`` counts or, where there is none in the answer,
    the last number. References without the mark must be a number and nothing else.

    Attributes:
        margin: The difference that would not matter.
    """

    margin: float = 0.05

    name: ClassVar[str] = "exact_answer"
    pooling: ClassVar[Pooling] = "mean"
    needs: ClassVar[str] = "a number as its reference"
    largest: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        """Check the margin."""
        check_margin(self.name, self.margin, self.largest)

    def check(self) -> None:
        """Accept everything: it needs no package."""

    def note(self) -> None:
        """Return nothing: there is nothing to know."""

    def applies(self, prompt: Prompt, turn: int) -> bool:
        """Return whether there is a number to find."""
        return bool(_wanted(prompt, turn))

    def parts(self, prompt: Prompt, turn: int, text: str) -> tuple[float, ...]:
        """Return whether the number is right, and one for the text."""
        return (float(final_number(text) in _wanted(prompt, turn)), 1.0)


def final_number(text: str) -> Decimal | None:
    """Return the number that an answer comes to; ``None`` without any."""
    _, mark, end = text.rpartition(_MARK)
    numbers = _NUMBER.findall(end)
    if not numbers:
        return None
    return Decimal((numbers[0] if mark else numbers[-1]).replace(",", ""))


def _wanted(prompt: Prompt, turn: int) -> set[Decimal | None]:
    texts = prompt.references(turn)
    marked = [text for text in texts if _MARK in text or _NUMBER.fullmatch(text)]
    return {final_number(text) for text in marked} - {None}
