"""BLEU, as sacrebleu counts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from treespec.datasets.base import Prompt
from treespec.measures.base import (
    AbstractQualityMeasure,
    check_margin,
    require_package,
)
from treespec.outcome import Pooling


@dataclass(frozen=True, slots=True)
class Bleu(AbstractQualityMeasure):
    """Corpus BLEU of 0 to 100 against the references, by sacrebleu's defaults.

    Each text gives its n-gram counts; the measure is that of their sums, not a mean
    over texts (sacrebleu: 1804.08771).

    Attributes:
        margin: The difference that would not matter, in points.
    """

    margin: float = 1.0

    name: ClassVar[str] = "bleu"
    pooling: ClassVar[Pooling] = "bleu"
    needs: ClassVar[str] = "a reference text"
    largest: ClassVar[float] = 100.0

    def __post_init__(self) -> None:
        """Check the margin."""
        check_margin(self.name, self.margin, self.largest)

    def check(self) -> None:
        """Require sacrebleu."""
        require_package("sacrebleu", "quality.bleu")

    def note(self) -> None:
        """Return nothing: there is nothing to know."""

    def applies(self, prompt: Prompt, turn: int) -> bool:
        """Return whether there is a reference."""
        return bool(prompt.references(turn))

    def parts(self, prompt: Prompt, turn: int, text: str) -> tuple[float, ...]:
        """Return matches and counts of 1- to 4-grams, and both lengths."""
        from sacrebleu.metrics import BLEU  # noqa: PLC0415 (optional)

        streams = [[reference] for reference in prompt.references(turn)]
        found = BLEU().corpus_score([text], streams)
        parts = (*found.counts, *found.totals, found.sys_len, found.ref_len)
        return tuple(map(float, parts))
