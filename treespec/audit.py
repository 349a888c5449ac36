"""Is a speculative text what the target would have written? And if not, how close?

Kernels round differently for different numbers of rows, so where the target's two best
tokens are nearly equal, decoding one token at a time and verifying a tree may choose
differently, and both are right. Every divergence is therefore measured: the target
reads the text again: a token at a time, as a chain in one row, and as a path among
siblings. The largest difference in the neighbourhood, at least the spacing of the
logits' own number type there, is the numerical *noise*; a token that is behind the best
one by at most twice that (each of the two compared scores may be off by it) is a *tie*.
Anything else is a *violation*.

Sampled texts can be compared as well if the rule draws exactly once per committed token
and nothing else draws: then both texts come from the same uniforms. What is measured is
then the cumulated law, in which a draw looks its uniform up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule
from treespec.metrics import Divergence, Verdict
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import Feed, ModelSession
from treespec.policies import AbstractDraftPolicy
from treespec.sampling import Sampling, uniforms
from treespec.tree import Layer, TokenTree, root_tree
from treespec.types import GenerationResult, ProposalKind

WINDOW = 8
"""Tokens before a divergence at which the noise is measured as well."""
TOLERANCE = 2.0
"""A token is tied with the best one up to this many times the noise."""
_NUM_SIBLINGS = 3
_CHUNK = 64
_FAR = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Finding:
    """What the comparison of two texts came to.

    Attributes:
        verdict: As in ``PromptOutcome.lossless``.
        divergence: Where the texts part, or where the violation is.
    """

    verdict: Verdict
    divergence: Divergence | None = None


def texts_must_agree(
    acceptance: AbstractAcceptanceRule, policy: AbstractDraftPolicy, sampling: Sampling
) -> bool:
    """Return whether speculation must give the very text of plain decoding.

    It must at temperature 0 with a lossless rule. Above, it must where the only draws
    are one per committed token, the same for both: a rule that draws like plain
    decoding, on a tree whose drafting draws nothing. Other rules keep the law of the
    text, not the text.
    """
    if not acceptance.lossless:
        return False
    draws_alike = (
        acceptance.draws_like_autoregressive
        and policy.proposal is ProposalKind.DETERMINISTIC
    )
    return sampling.greedy or draws_alike


def audit(
    target: AbstractLanguageModel,
    sampling: Sampling,
    baseline: GenerationResult,
    speculative: GenerationResult,
) -> Finding:
    """Compare a speculative text with the baseline's.

    After a tie the two texts go their own ways; every later token of the speculative
    one is then checked against the target by itself.

    Args:
        target: The model that both were decoded with.
        sampling: How tokens were chosen.
        baseline: The text of autoregressive decoding.
        speculative: The text to judge, from the same prompt and seed.
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
    for later in judge.suspects(index + 1):
        found = judge.measure(later, (speculative.tokens[later],))
        if not _is_tie(found):
            return Finding("violation", found)
    return Finding("tie", divergence)


def _is_tie(divergence: Divergence) -> bool:
    return divergence.margin <= TOLERANCE * divergence.noise


def _first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next(
        (i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right))
    )


@dataclass(slots=True)
class _Judge:
    """The target, reading one text again.

    Attributes:
        target: The model.
        sampling: How tokens were chosen.
        result: The text.
    """

    target: AbstractLanguageModel
    sampling: Sampling
    result: GenerationResult
    _marks: Sequence[float] = ()
    _dtype: torch.dtype = torch.float32

    def measure(self, index: int, tokens: Sequence[int]) -> Divergence:
        """Return how far the worst of ``tokens`` is behind the best one at ``index``.

        Args:
            index: Place among the new tokens.
            tokens: The tokens that were chosen there.
        """
        last = len(self.result.prompt_tokens) + index - 1
        first = max(last - WINDOW, 0)
        one_row = self._logits_one_row(first, last)
        others = [self._logits_many_rows(first, last, bushy=b) for b in (False, True)]
        many_rows = others[0]
        noise = max(self._noise(one_row, other) for other in others)
        margin = self._margin(one_row[-1], last, index, tokens)
        if margin == _FAR:  # filtered out here, but perhaps not by the other rounding
            margin = self._margin(many_rows[-1], last, index, tokens)
        return Divergence(index, margin, noise)

    def top_margin(self, index: int) -> float:
        """Return the difference of the two best scores at ``index``."""
        last = len(self.result.prompt_tokens) + index - 1
        scores = self._processed(self._logits_many_rows(last, last)[-1], last)
        best = scores.topk(2).values
        return _finite(float(best[0] - best[1]))

    def suspects(self, start: int) -> list[int]:
        """Return the places from ``start`` on whose token is not the best one."""
        found = []
        prompt, tokens = len(self.result.prompt_tokens), self.result.tokens
        for index in range(start, len(tokens), _CHUNK):
            stop = min(index + _CHUNK, len(tokens))
            first, last = prompt + index - 1, prompt + stop - 2
            rows = self._logits_many_rows(first, last)
            for offset, logits in enumerate(rows):
                place, token = index + offset, tokens[index + offset]
                if self._margin(logits, first + offset, place, (token,)) > 0:
                    found.append(place)
        return found

    @property
    def _text(self) -> list[int]:
        return [*self.result.prompt_tokens, *self.result.tokens]

    @torch.inference_mode()
    def _logits_one_row(self, first: int, last: int) -> Tensor:
        """Return logits after each token from ``first`` to ``last``, one by one."""
        text = self._text[: last + 1]
        session = ModelSession(self.target, len(text))
        sequence = session.admit(text[: first + 1], len(text))
        assert sequence is not None
        rows = []
        for place in range(first, last + 1):
            if place > first:
                sequence.tokens.append(text[place])
            elif first > 0:
                # The last token by itself, as a decoding step would read it.
                sequence.tokens.pop()
                session.run([Feed(sequence)])
                sequence.tokens.append(text[first])
            rows.append(session.run([Feed(sequence)])[0].logits[-1])
        return torch.stack(rows).double()

    @torch.inference_mode()
    def _logits_many_rows(
        self, first: int, last: int, *, bushy: bool = False
    ) -> Tensor:
        """Return logits after each token from ``first`` to ``last``, in one row.

        Args:
            first: Place in the whole text.
            last: Place in the whole text.
            bushy: Whether every node has siblings, so that rows and slots of the path
                are as scattered as in a tree.
        """
        text = self._text[: last + 1]
        copies = 1 + _NUM_SIBLINGS * bushy
        num_slots = len(text) + (last - first) * copies
        session = ModelSession(self.target, num_slots)
        sequence = session.admit(text[:first], num_slots)
        assert sequence is not None
        if first > 0:
            session.run([Feed(sequence)])
        sequence.tokens.append(text[first])
        if first == last:
            logits = session.run([Feed(sequence)])[0].logits
        else:
            tree = _path_tree(text[first : last + 1], copies, self.target.device)
            nodes = torch.arange(1, tree.size, device=self.target.device)
            logits = session.run([Feed(sequence, tree, nodes)])[0].logits[::copies]
        self._dtype = logits.dtype
        return logits.double()

    def _noise(self, left: Tensor, right: Tensor) -> float:  # [L, V], [L, V]
        """Return how much two readings of the same tokens differ, at most.

        In the unit of ``_margin``: logits at temperature 0, else probability.
        """
        if self.sampling.greedy:
            # Rows may agree by luck; closer than neighbouring numbers they never are.
            spacing = torch.finfo(self._dtype).eps * float(left[-1].abs().max())
            return max(spacing, float((left - right).abs().max()))
        left, right = self.sampling.probs(left), self.sampling.probs(right)
        moved = (left - right).cumsum(dim=-1).abs().max()
        return max(torch.finfo(torch.float32).eps, float(moved))

    def _margin(
        self, logits: Tensor, last: int, index: int, tokens: Sequence[int]
    ) -> float:
        """Return how far the worst of ``tokens`` is from being chosen at ``index``.

        At temperature 0 in logits; above, in probability: from the draw's uniform to
        the token's stretch of the cumulated law.

        Args:
            logits: Logits after the token at ``last``.  # [V]
            last: Place in the whole text.
            index: Place among the new tokens.
            tokens: The tokens in question.
        """
        processed, chosen = self._processed(logits, last), list(tokens)
        if self.sampling.greedy:
            return _finite(float((processed.max() - processed[chosen]).max()))
        probs = self.sampling.probs(processed).double()
        if not probs[chosen].all():
            return _FAR
        above = (probs.cumsum(dim=-1) / probs.sum())[chosen]
        below = above - (probs / probs.sum())[chosen]
        mark = self._mark(index)
        return float(torch.maximum(below - mark, mark - above).max().clamp(min=0))

    def _processed(self, logits: Tensor, last: int) -> Tensor:
        """Return the logits after the token at ``last``, history applied."""
        root = torch.zeros(1, dtype=torch.int64, device=logits.device)
        return self.sampling.apply_history(
            logits[None], root, root - 1, self._text[: last + 1]
        )[0]

    def _mark(self, index: int) -> float:
        """Return the uniform that the text's draw at ``index`` had."""
        if len(self._marks) <= index:
            assert self.result.seed is not None
            generator = torch.Generator(device=self.target.device)
            generator.manual_seed(self.result.seed)
            count = len(self.result.tokens)
            self._marks = [float(uniforms((1,), generator)) for _ in range(count)]
        return self._marks[index]


def _finite(value: float) -> float:
    """Return a number that JSON can hold: a token that was filtered out is far off."""
    return min(value, _FAR)


def _path_tree(tokens: Sequence[int], copies: int, device: torch.device) -> TokenTree:
    """Return a tree along ``tokens``, the first being its root.

    Every other token of the path is the last of ``copies`` equal siblings, so that the
    path is nodes 0, ``copies``, 2 * ``copies``, ...
    """
    tree = root_tree(tokens[0], ProposalKind.DETERMINISTIC, device)
    depth = torch.arange(len(tokens) - 1, device=device).repeat_interleave(copies)
    layer = Layer(
        parents=depth * copies,
        tokens=torch.tensor(tokens[1:], device=device)[depth],
        draft_logprobs=torch.zeros(depth.shape[0], device=device),
        sources=torch.zeros_like(depth),
    )
    return tree.extend(layer, torch.zeros(1, dtype=torch.int64, device=device))
