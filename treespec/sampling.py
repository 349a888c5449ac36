"""From logits to a law: every processor and every filter of the package.

Target and draft, speculative and autoregressive decoding all go through here, so they
cannot differ. The order is that of transformers: repetition penalty, other processors
that read the history, temperature, top-k, top-p. Knows nothing of trees but parents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from treespec.errors import TreespecError

GREEDY_BELOW = 1e-5
"""Temperatures below this mean argmax: dividing by them would only overflow."""


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
