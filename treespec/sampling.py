"""From logits to a token: every processor, every law and every draw of the package.

Target and draft, speculative and autoregressive decoding all go through here, so they
cannot differ. The order is that of transformers: repetition penalty, other processors
that read the history, temperature, top-k, top-p. Knows nothing of trees but parents.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from treespec.errors import TreespecError

GREEDY_BELOW = 1e-5
"""Temperatures below this mean argmax: dividing by them would only overflow."""
NO_TOKEN = -1
"""Stands where a law had no token left to draw."""


class LogitsProcessor(Protocol):
    """A function of the text so far and the logits, such as those of transformers."""

    def __call__(self, histories: Tensor, logits: Tensor, /) -> Tensor:
        """Return processed logits.

        Args:
            histories: Every row's text so far, all of one length.  # [B, L] int64
            logits: The row's next-token logits.  # [B, V]
        """


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request turns logits into the law of its next token.

    Attributes:
        temperature: Divides the logits; below 1e-5 the law is the argmax.
        top_k: Keep the k likeliest tokens and those tied with the last; 0 keeps all.
        top_p: Keep the fewest likeliest tokens whose probabilities reach ``top_p``.
        repetition_penalty: Divides positive and multiplies negative logits of tokens
            that the text already has; 1 is neutral (1909.05858).
        processors: More processors that read the history, in order.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    processors: tuple[LogitsProcessor, ...] = ()

    def __post_init__(self) -> None:
        """Check the values; a list of processors becomes a tuple."""
        temperature, top_p = self.temperature, self.top_p
        penalty, top_k = self.repetition_penalty, self.top_k
        _require(
            _is_finite(temperature) and temperature >= 0,
            f"sampling.temperature must be a finite number >= 0, got {temperature!r}; "
            "use 0 for greedy decoding",
        )
        _require(
            isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 0,
            f"sampling.top_k must be an integer >= 0, got {top_k!r}; "
            "use 0 to keep all tokens",
        )
        _require(
            _is_finite(top_p) and 0 < top_p <= 1,
            f"sampling.top_p must be in (0, 1], got {top_p!r}; use 1 to keep all",
        )
        _require(
            _is_finite(penalty) and penalty > 0,
            "sampling.repetition_penalty must be a finite number > 0, "
            f"got {penalty!r}; use 1 for none",
        )
        processors = self.processors
        _require(
            isinstance(processors, Sequence) and all(map(callable, processors)),
            "sampling.processors must be a list of callables "
            f"(histories, logits) -> logits, got {processors!r}; use [] for none",
        )
        object.__setattr__(self, "processors", tuple(processors))

    @property
    def greedy(self) -> bool:
        """Whether the law is the argmax."""
        return self.temperature < GREEDY_BELOW

    @property
    def reads_history(self) -> bool:
        """Whether the logits depend on the text beyond what the model made of it."""
        return self.repetition_penalty != 1.0 or bool(self.processors)

    def apply_history(
        self,
        logits: Tensor,
        tokens: Tensor,
        parents: Tensor,
        committed: Sequence[int],
    ) -> Tensor:
        """Return the logits after the processors that read the history.

        Each node has its own history, as in autoregressive decoding: the committed
        text, then the path to the node, the node included.

        Args:
            logits: Next-token logits of every node.  # [N, V]
            tokens: The nodes' tokens; node 0 is the last committed one.  # [N]
            parents: The nodes' parents, -1 for the root.  # [N]
            committed: The text so far, the root's token included.

        Returns:
            New logits, at least float32, as transformers' processors expect; or
            ``logits`` itself if nothing reads the history.  # [N, V]
        """
        if not self.reads_history:
            return logits
        logits = _at_least_float32(logits)
        processed = torch.empty_like(logits)
        layer = torch.zeros(1, dtype=torch.int64, device=logits.device)
        histories = torch.tensor([list(committed)], device=logits.device)
        while layer.numel():
            processed[layer] = self._process(histories, logits[layer])
            is_child = parents[:, None] == layer
            layer, parent_rows = is_child.nonzero().unbind(dim=1)
            histories = torch.cat((histories[parent_rows], tokens[layer, None]), dim=1)
        return processed

    def _process(self, histories: Tensor, logits: Tensor) -> Tensor:  # [B, V]
        """Apply everything that reads the history to rows of one depth."""
        if self.repetition_penalty != 1.0:
            logits = _penalise(histories, logits, self.repetition_penalty)
        for processor in self.processors:
            processed = processor(histories, logits)
            if processed.shape != logits.shape:
                raise TreespecError(
                    f"sampling.processors: {processor} returned logits of shape "
                    f"{tuple(processed.shape)} for {tuple(logits.shape)}; return one "
                    "logit per token and row"
                )
            logits = processed
        return logits

    def probs(self, logits: Tensor) -> Tensor:
        """Return the law of the next token under temperature, top-k and top-p.

        Args:
            logits: Logits after ``apply_history``; not written to.  # [..., V]

        Returns:
            Probabilities; float64 for float64 logits, else float32.  # [..., V]
        """
        scores = _at_least_float32(logits)
        if self.greedy:
            best = scores.max(dim=-1, keepdim=True).indices
            return torch.zeros_like(scores).scatter_(-1, best, 1.0)
        scores = scores / self.temperature
        if self.top_k > 0:
            scores = _keep_top_k(scores, self.top_k)
        if self.top_p < 1.0:
            scores = _keep_top_p(scores, self.top_p)
        return scores.softmax(dim=-1)


class AbstractChance(ABC):
    """The only three ways in which a request may be lucky.

    Drafting and acceptance take all their randomness from here, so that a test can put
    in its place an object that tries every outcome and adds up their exact weights.
    """

    @abstractmethod
    def accepts(self, probability: Tensor) -> bool:
        """Return true with the given probability; above 1 means 1.

        Waits for the device.

        Args:
            probability: A scalar.  # []
        """

    @abstractmethod
    def draw(self, probs: Tensor) -> Tensor:
        """Draw one token per row, independently, without waiting for the device.

        Args:
            probs: Laws; each has some mass.  # [..., V]

        Returns:
            Token ids.  # [...] int64
        """

    @abstractmethod
    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        """Draw different tokens per row, one after the other, in the order drawn.

        Each draw is from the row's law without the tokens drawn before, renormalised.

        Args:
            probs: Laws, of any mass; a row may be empty.  # [R, V]
            num_draws: K, how many tokens per row.

        Returns:
            Token ids, ``NO_TOKEN`` where the law had run out.  # [R, K] int64
        """


@dataclass(frozen=True, slots=True)
class GeneratorChance(AbstractChance):
    """The randomness of one request, from its own generator.

    Attributes:
        generator: Advances with every call; lives on any device.
    """

    generator: torch.Generator

    def accepts(self, probability: Tensor) -> bool:
        """Return true with the given probability: never at 0, always at 1."""
        uniform = uniforms((), self.generator).to(probability.device)
        return bool(uniform < probability)

    def draw(self, probs: Tensor) -> Tensor:
        """Draw one token per row; see the function ``draw``."""
        return draw(probs, self.generator)

    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        """Draw different tokens; see the function ``draw_without_replacement``."""
        return draw_without_replacement(probs, num_draws, self.generator)


def draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one token per row from a single uniform, without a device sync.

    The uniform is looked up in the cumulated law, both float64: among 150,000 tokens
    float32 would round the small ones away. A token of probability 0 is never drawn.

    Args:
        probs: Laws; each has some mass.  # [..., V]
        generator: Advances by one uniform per row.

    Returns:
        Token ids.  # [...] int64
    """
    marks = uniforms((*probs.shape[:-1], 1), generator).to(probs.device)
    return look_up(probs, marks)[..., 0]


def look_up(probs: Tensor, marks: Tensor) -> Tensor:  # [..., V], [..., M] -> [..., M]
    """Return the tokens in whose stretch of the cumulated law the marks in [0, 1) are.

    A token's stretch is from the mass of all tokens before it, included, to that mass
    plus its own, excluded.
    """
    cumulated = probs.double().cumsum(dim=-1)
    total = cumulated[..., -1:]
    # Rounding must not carry a mark to the end, where no token is.
    before_end = torch.nextafter(total, torch.zeros_like(total))
    marks = torch.minimum(marks * total, before_end)
    tokens = torch.searchsorted(cumulated, marks, right=True)
    return tokens.clamp(max=probs.shape[-1] - 1)  # a law of NaN has no place for a mark


def draw_without_replacement(
    probs: Tensor, num_draws: int, generator: torch.Generator
) -> Tensor:
    """Draw different tokens by a race of exponential clocks, without a device sync.

    The order in which the clocks ring is the order of successive draws; it is that of
    the Gumbel-top-k trick (1903.06059). Clocks are float64, because the first of
    150,000 rings so early that float32 would round it.

    Args:
        probs: Laws, of any mass; a row may be empty.  # [R, V]
        num_draws: K, how many tokens per row.
        generator: Advances by one uniform per probability.

    Returns:
        Token ids, ``NO_TOKEN`` where the law had run out.  # [R, K] int64
    """
    drawn = uniforms(probs.shape, generator)
    smallest = torch.finfo(drawn.dtype).tiny  # log(0) would stop every clock
    clocks = drawn.clamp_(min=smallest).log_().neg_().to(probs.device)
    first = (probs / clocks).topk(min(num_draws, probs.shape[-1]), dim=-1)
    tokens = first.indices.masked_fill(first.values <= 0, NO_TOKEN)
    return F.pad(tokens, (0, num_draws - tokens.shape[-1]), value=NO_TOKEN)


def uniforms(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return float64 uniforms in [0, 1) on the generator's device."""
    return torch.rand(
        tuple(shape),
        generator=generator,
        dtype=torch.float64,
        device=generator.device,
    )


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _penalise(histories: Tensor, logits: Tensor, penalty: float) -> Tensor:
    """Make every token of the history less likely, once however often it occurs."""
    seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, histories, True)
    penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, penalised, logits)


def _keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Set all but the k best scores to -inf; ties with the last one stay."""
    least = scores.topk(min(top_k, scores.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf)


def _keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Set the tail of mass at most ``1 - top_p`` to -inf; the best score stays."""
    ascending, order = scores.sort(dim=-1)
    in_tail = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    in_tail[..., -1] = False
    dropped = torch.zeros_like(in_tail).scatter_(-1, order, in_tail)
    return scores.masked_fill(dropped, -torch.inf)


def _is_finite(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TreespecError(message)
