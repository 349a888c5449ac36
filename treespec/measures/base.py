"""What a quality measure is: numbers of a text whose sums over prompts can be pooled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import ClassVar

from treespec.datasets.base import Prompt
from treespec.errors import TreespecError, require_number
from treespec.outcome import Pooling, Score


class AbstractQualityMeasure(ABC):
    """Judges texts by what the dataset knows of good answers.

    Both sides are judged alike, after decoding and outside of every timing. A measure
    is in use if it stands in the configuration under ``quality``.

    Attributes:
        name: As in ``summary.json``.
        pooling: How the sums of ``parts`` over prompts become the measure.
        needs: What a prompt must come with, for errors.
        largest: The largest value, by which values can differ at most.
        margin: The difference between the two sides, in the measure's unit, that would
            not matter: what equivalence is stated with.
    """

    name: ClassVar[str]
    pooling: ClassVar[Pooling]
    needs: ClassVar[str]
    largest: ClassVar[float]
    margin: float

    @abstractmethod
    def check(self) -> None:
        """Refuse, before anything is decoded, what cannot work here.

        Raises:
            TreespecError: A package or a permission is missing.
        """

    @abstractmethod
    def note(self) -> str | None:
        """Return what the user should know before it begins, if anything."""

    @abstractmethod
    def applies(self, prompt: Prompt, turn: int) -> bool:
        """Return whether it can judge answers to a turn."""

    @abstractmethod
    def parts(self, prompt: Prompt, turn: int, text: str) -> tuple[float, ...]:
        """Return the numbers of one text; called only where it applies."""

    def score(
        self, prompt: Prompt, turn: int, speculative: str, baseline: str
    ) -> Score:
        """Return the numbers of both texts; equal ones are judged once."""
        plain = self.parts(prompt, turn, baseline)
        same = speculative == baseline
        return Score(
            measure=self.name,
            pooling=self.pooling,
            largest=self.largest,
            margin=self.margin,
            speculative=plain if same else self.parts(prompt, turn, speculative),
            baseline=plain,
        )


def check_margin(name: str, margin: object, largest: float) -> None:
    """Refuse a margin that no difference could be held against.

    Raises:
        TreespecError: Names the key, the rule and the value.
    """
    key = f"quality.{name}.margin"
    require_number(key, margin)
    assert isinstance(margin, int | float)
    if not 0 < margin <= largest:
        raise TreespecError(
            f"{key} must be above 0 and at most {largest:g}, got {margin!r}"
        )


def require_package(name: str, key: str) -> None:
    """Refuse to begin without an optional package.

    Raises:
        TreespecError: Names the package and how to get it.
    """
    if find_spec(name) is None:
        raise TreespecError(
            f"{key} needs the package {name}, which is not installed: pip install "
            f"'treespec[eval]', or leave {key} out"
        )
