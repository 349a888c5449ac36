"""What a run finds out about one prompt, before any number is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from treespec.datasets.base import prompt_id
from treespec.types import GenerationResult

Verdict = Literal["identical", "tie", "violation", "unchecked", "lossy"]
FAR = float(np.finfo(np.float32).max)
"""The margin of a token that no noise explains: JSON knows no infinity."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a speculative text left the baseline's, and how close the call was.

    Attributes:
        index: Position in the new tokens: of the first difference or, in a violation
            after a tie, of the token that is no tie.
        margin: Twice the least change of all of the target's logits that would make
            the token the one to choose. Greedy, how far it is behind the best one.
        noise: How far the target's logits there were measured to be off, at most; a
            margin of at most twice that is a tie.
    """

    index: int
    margin: float
    noise: float


@dataclass(frozen=True, slots=True)
class Quality:
    """What the target thinks of the two texts of one prompt.

    The target reads each text once; its law is that of temperature 1, without top-k,
    top-p or processors, so that texts of all samplings compare. ``None`` for a text
    without new tokens.

    Attributes:
        mean_token_logprob: Mean log-probability of a new token of the speculative text.
        baseline_mean_token_logprob: The same for the baseline's text.
    """

    mean_token_logprob: float | None
    baseline_mean_token_logprob: float | None


Pooling = Literal["mean", "bleu"]
"""How sums over prompts become a measure: ``mean``: the first by the second; ``bleu``:
corpus BLEU of matches and counts of 1- to 4-grams and both lengths."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """One of several measurements of the same prompt.

    Attributes:
        baseline_s: Decode seconds without speculation.
        speculative_s: Decode seconds with it.
        agrees: Whether both texts are those that were kept.
    """

    baseline_s: float
    speculative_s: float
    agrees: bool


@dataclass(frozen=True, slots=True)
class Score:
    """What a quality measure says of the two texts of one prompt or turn.

    Attributes:
        measure: Its name.
        pooling: How sums of the numbers below become the measure.
        largest: The most by which two values can differ.
        margin: The difference between the sides that would not matter.
        speculative: Numbers of the speculative text.
        baseline: The same of the baseline's.
    """

    measure: str
    pooling: Pooling
    largest: float
    margin: float
    speculative: tuple[float, ...]
    baseline: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """One prompt, or turn, decoded with and without speculation in one process.

    Attributes:
        id: The prompt's name in its dataset; from the second turn on followed by a
            slash and the turn's number.
        category: What kind of task it is.
        speculative: What tree speculation made of it.
        baseline: What the baseline made of it.
        lossless: ``identical`` texts; a ``tie`` of two choices within numerical noise;
            a ``violation``; ``unchecked``, where texts need not agree (rules that keep
            the law of a sampled text); or ``lossy``, where the rule does not keep the
            target's law.
        divergence: Where the texts part; ``None`` if they do not or were not compared.
        quality: What the target thinks of the texts; only where the rule is lossy.
        turn: Which turn of its prompt it is, from 1. Later ones follow the baseline's
            earlier answers on both sides.
        scores: What the quality measures say of the texts, if any were asked.
        repeats: Every measurement, if there was more than one; of each side the one
            with the median time is kept in ``speculative`` and ``baseline``.
    """

    id: str
    category: str
    speculative: GenerationResult
    baseline: GenerationResult
    lossless: Verdict
    divergence: Divergence | None = None
    quality: Quality | None = None
    turn: int = 1
    scores: tuple[Score, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    @property
    def prompt_id(self) -> str:
        """The prompt whose turn this is; that is what statistics resample."""
        return prompt_id(self.id, self.turn)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.speculative.prompt_tokens)
