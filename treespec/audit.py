"""Is a speculative text what the target would have written? And if not, how close?

Kernels round differently for different numbers of rows, so where two choices are nearly
equal, decoding one token at a time and verifying a tree may choose differently, and
both are right. Every divergence is therefore measured, in logits:

- its *margin*: twice the least change of all logits that would make the token the one
  to choose (``margins``). Greedy, how far it is behind the best one.
- the *noise*: how much logits really change when the target reads the text again, a
  token at a time, as a chain in one row, and as a path among siblings (``rereading``).

A margin of at most twice the noise is a *tie*. Anything else is a *violation*, and so
is a text that goes on where it should have ended, or ends where it should go on.

Sampled texts are compared as well if the rule draws exactly once per committed token:
then both texts come from the same uniforms, which are known from the seed. So a text
that was drawn with another seed or from another law is found out like a wrong argmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule
from treespec.chance import uniforms
from treespec.margins import margin
from treespec.models.base import AbstractLanguageModel
from treespec.outcome import FAR, Divergence, Verdict
from treespec.rereading import Reader
from treespec.sampling import Sampling
from treespec.types import GenerationResult

WINDOW = 32
"""Tokens before a divergence at which the noise is measured as well."""
TOLERANCE = 2.0
"""A token is tied up to this many times the noise: two compared logits may be off."""
_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Finding:
    """What the comparison of two texts came to.

    Attributes:
        verdict: As in ``PromptOutcome.lossless``.
        divergence: Where the texts part, or where the violation is.
    """

    verdict: Verdict
    divergence: Divergence | None = None


def texts_must_agree(acceptance: AbstractAcceptanceRule, sampling: Sampling) -> bool:
    """Return whether speculation must give the very text of plain decoding.

    It must at temperature 0 with a lossless rule. Above, it must where the rule draws
    like plain decoding: drafting draws from a source of its own. Other rules keep the
    law of the text, not the text.
    """
    alike = sampling.greedy or acceptance.draws_like_autoregressive
    return acceptance.lossless and alike


@dataclass(frozen=True, slots=True)
class Ending:
    """When texts should end.

    Attributes:
        max_new_tokens: Most new tokens.
        eos_ids: Tokens that end a text.
    """

    max_new_tokens: int
    eos_ids: frozenset[int]

    def misplaced(self, result: GenerationResult, max_positions: int) -> int | None:
        """Return where a text goes on although it should end, or the other way round.

        Args:
            result: The text; one that a stop string ended may be of any length.
            max_positions: Longest text that the model reads, prompt included.
        """
        tokens, reason = result.tokens, result.finish_reason
        most = min(self.max_new_tokens, max_positions - len(result.prompt_tokens))
        ended = (i for i, token in enumerate(tokens, 1) if token in self.eos_ids)
        first_end = next(ended, None)
        wanted = min(most, first_end or most)
        if len(tokens) > wanted or (reason != "stop" and len(tokens) < wanted):
            return min(wanted, len(tokens))
        return None


def audit(
    target: AbstractLanguageModel,
    sampling: Sampling,
    baseline: GenerationResult,
    speculative: GenerationResult,
    ending: Ending,
) -> Finding:
    """Compare a speculative text with the baseline's.

    After a tie the two texts go their own ways; every later token of the speculative
    one is then checked against the target by itself.

    Args:
        target: The model that both were decoded with.
        sampling: How tokens were chosen.
        baseline: The text of autoregressive decoding.
        speculative: The text to judge, from the same prompt and seed.
        ending: When both should end.
    """
    if baseline.tokens == speculative.tokens:
        return Finding("identical")
    index = _first_difference(baseline.tokens, speculative.tokens)
    judge = _Judge(target, sampling, speculative)
    if index == min(len(baseline.tokens), len(speculative.tokens)):
        # One text is the start of the other: an end was missed or invented.
        return Finding("violation", Divergence(index, judge.top_margin(index), 0.0))
    either = (baseline.tokens[index], speculative.tokens[index])
    divergence = judge.measure(index, either)
    if not _is_tie(divergence):
        return Finding("violation", divergence)
    violation = judge.violation(index + 1, ending)
    return Finding("tie", divergence) if violation is None else violation


def audit_alone(
    target: AbstractLanguageModel,
    sampling: Sampling,
    baseline: GenerationResult,
    speculative: GenerationResult,
    ending: Ending,
) -> Finding:
    """Compare a speculative text with that of a program that rounds differently.

    Where the two part, no noise of this target says how far the other's logits may be
    off. So every token of the speculative text is checked against the target by itself,
    as ``audit`` does after a tie, and the baseline's tokens are not judged at all: the
    margin that is told is that between the two.

    Args:
        target: The model that the speculative text was decoded with.
        sampling: How tokens were chosen.
        baseline: The other program's text.
        speculative: The text to judge, from the same prompt.
        ending: When both should end.
    """
    if baseline.tokens == speculative.tokens:
        return Finding("identical")
    judge = _Judge(target, sampling, speculative)
    violation = judge.violation(0, ending)
    if violation is not None:
        return violation
    index = _first_difference(baseline.tokens, speculative.tokens)
    if index == min(len(baseline.tokens), len(speculative.tokens)):
        return Finding("tie", Divergence(index, judge.top_margin(index), 0.0))
    either = (baseline.tokens[index], speculative.tokens[index])
    return Finding("tie", judge.measure(index, either))


def _is_tie(divergence: Divergence) -> bool:
    return divergence.margin <= TOLERANCE * divergence.noise


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next(
        (i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right))
    )


@dataclass(slots=True)
class _Judge:
    """Measures how close the choice of a text's tokens was.

    Attributes:
        target: The model.
        sampling: How tokens were chosen.
        result: The text.
    """

    target: AbstractLanguageModel
    sampling: Sampling
    result: GenerationResult
    _marks: Sequence[float] = ()

    def measure(self, index: int, tokens: Sequence[int]) -> Divergence:
        """Return how far the worst of ``tokens`` was from being chosen at ``index``.

        Args:
            index: Place among the new tokens.
            tokens: The tokens that were chosen there.
        """
        last = self._place_before(index)
        reading = self._reader.read(max(last - WINDOW, 0), last)
        far = self._margin(reading.logits, index, tokens)
        return Divergence(index, far, reading.noise)

    def top_margin(self, index: int) -> float:
        """Return the difference of the two best logits at ``index``."""
        last = self._place_before(index)
        logits = self._reader.logits(last, last)[-1]
        best, second = logits.topk(2).values.tolist()
        return float(min(best - second, FAR))

    def violation(self, start: int, ending: Ending) -> Finding | None:
        """Return the first token from ``start`` on that is no tie, or a wrong end."""
        for index in self.suspects(start):
            found = self.measure(index, (self.result.tokens[index],))
            if not _is_tie(found):
                return Finding("violation", found)
        misplaced = ending.misplaced(self.result, self.target.max_positions)
        if misplaced is None:
            return None
        far = self.top_margin(misplaced)
        return Finding("violation", Divergence(misplaced, far, 0.0))

    def suspects(self, start: int) -> list[int]:
        """Return the places from ``start`` on whose token is not the one to choose."""
        found = []
        tokens = self.result.tokens
        for index in range(start, len(tokens), _CHUNK):
            places = range(index, min(index + _CHUNK, len(tokens)))
            first, last = map(self._place_before, (places[0], places[-1]))
            rows = self._reader.logits(first, last)
            for place, logits in zip(places, rows, strict=True):
                if self._margin(logits, place, (tokens[place],)) > 0:
                    found.append(place)
        return found

    @property
    def _reader(self) -> Reader:
        text = (*self.result.prompt_tokens, *self.result.tokens)
        return Reader(self.target, self.sampling, text)

    def _place_before(self, index: int) -> int:
        """Return the place in the whole text after which ``index`` was chosen."""
        return len(self.result.prompt_tokens) + index - 1

    def _margin(self, logits: Tensor, index: int, tokens: Sequence[int]) -> float:
        mark = 0.0 if self.sampling.greedy else self._mark(index)
        return max(margin(self.sampling, logits, token, mark) for token in tokens)

    def _mark(self, index: int) -> float:
        """Return the uniform that the text's draw at ``index`` had."""
        if not self._marks:
            assert self.result.seed is not None
            generator = torch.Generator(device=self.target.device)
            generator.manual_seed(self.result.seed)
            count = len(self.result.tokens)
            self._marks = [float(uniforms((1,), generator)) for _ in range(count)]
        return self._marks[index]
