"""What a drafter says about the next token at each frontier node.

A draft model knows a whole law per node (``DenseDraft``), a retrieval method knows a
few candidates (``SparseDraft``). Draft policies see both through ``AbstractDraft``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.sampling import Sampling
from treespec.tree import sibling_ranks

CHUNK = 128
"""Tokens of the vocabulary whose maximum is taken at once."""
ROWS_AT_ONCE = 2
"""Rows of logits that are exponentiated at once."""


@dataclass(frozen=True, slots=True)
class Children:
    """Candidate children of frontier nodes, best first within each row.

    Attributes:
        rows: Row of the draft, that is, position in the frontier.  # [M]
        tokens: Token ids.  # [M]
        logprobs: log q(token | frontier node).  # [M]
        sources: Index of the drafter's source.  # [M]
    """

    rows: Tensor
    tokens: Tensor
    logprobs: Tensor
    sources: Tensor

    @property
    def size(self) -> int:
        """Number of candidates."""
        return self.tokens.shape[0]

    def first(self, k: int) -> Children:
        """Return the first ``k`` candidates."""
        return Children(
            self.rows[:k], self.tokens[:k], self.logprobs[:k], self.sources[:k]
        )

    def select(self, keep: Tensor) -> Children:  # [K]
        """Return the candidates at the positions ``keep``."""
        return Children(
            self.rows.index_select(0, keep),
            self.tokens.index_select(0, keep),
            self.logprobs.index_select(0, keep),
            self.sources.index_select(0, keep),
        )


class AbstractDraft(ABC):
    """Next-token candidates for F frontier nodes of one request."""

    @abstractmethod
    def top(self, k: int) -> Children:
        """Return at most ``k`` likeliest children of every frontier node.

        Ranked without temperature: the order of likelihood does not depend on it.
        """

    @abstractmethod
    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:
        """Return the law that sampled children are drawn from.

        The draft's own law under the request's top-k and top-p, and the request's
        temperature unless the draft has one of its own: whatever it is, acceptance
        stays lossless as long as it is what was drawn from.

        Returns:
            Probabilities; a row of zeros where nothing is known.  # [F, V] float32
        """

    def probs(self, vocab_size: int) -> Tensor:
        """Return the probability of every child, without temperature.

        As ``top`` has it, so a row may sum to less than one: the rest is for tokens
        that the draft does not name.

        Returns:
            Probabilities.  # [F, V] float32
        """
        found, num_rows = self.top(vocab_size), self.row_sources().shape[0]
        probs = found.logprobs.new_zeros((num_rows, vocab_size))
        probs[found.rows, found.tokens] = found.logprobs.exp()
        return probs

    @abstractmethod
    def known_rows(self) -> Tensor:  # [R]
        """Return the rows whose law is not empty, in ascending order."""

    @abstractmethod
    def row_sources(self) -> Tensor:  # [F]
        """Return the source that each row's law is from; 0 where nothing is known."""


@dataclass(frozen=True, slots=True)
class DenseDraft(AbstractDraft):
    """A law over the whole vocabulary per frontier node.

    Attributes:
        logits: Draft logits over the target's vocabulary; -inf where the draft's
            vocabulary has no such token.  # [F, V]
        source: Index of the drafter's source.
        temperature: What its law is drawn with; ``None``: the request's temperature.
    """

    logits: Tensor
    source: int = 0
    temperature: float | None = None

    def top(self, k: int) -> Children:
        """Return the ``k`` likeliest children of every node, without a sync."""
        num_rows, vocab_size = self.logits.shape
        k = min(k, vocab_size)
        logits = self.logits.float()
        tokens = likeliest(logits, k)
        logprobs = logprobs_of(logits, tokens)
        rows = torch.arange(num_rows, device=logits.device).repeat_interleave(k)
        return Children(
            rows=rows,
            tokens=tokens.flatten(),
            logprobs=logprobs.flatten(),
            sources=torch.full_like(rows, self.source),
        )

    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:  # [F, V]
        """Return the sampling law of every node."""
        if self.temperature is not None:
            sampling = replace(sampling, temperature=self.temperature)
        return sampling.probs(self.logits)

    def probs(self, vocab_size: int) -> Tensor:  # [F, V]
        """Return the draft's own law of every node."""
        return self.logits.float().softmax(dim=-1)

    def known_rows(self) -> Tensor:  # [F]
        """Return all rows."""
        return torch.arange(self.logits.shape[0], device=self.logits.device)

    def row_sources(self) -> Tensor:  # [F]
        """Return the one source for every row."""
        return torch.full_like(self.known_rows(), self.source)


def likeliest(logits: Tensor, k: int) -> Tensor:  # [F, V] -> [F, K]
    """Return the ``k`` best tokens of every row, best first.

    The best K are in the K chunks that have the best maxima: finding those is one fast
    pass, and what is left to sort is small.
    """
    num_chunks = logits.shape[-1] // CHUNK
    if num_chunks <= k:
        return logits.topk(k, dim=-1).indices
    num_whole = num_chunks * CHUNK
    whole = logits[:, :num_whole].reshape(-1, num_chunks, CHUNK)
    chunks = whole.amax(dim=-1).topk(k).indices  # [F, K]
    within = torch.arange(CHUNK, device=logits.device)
    tokens = (chunks[..., None] * CHUNK + within).flatten(-2)  # [F, K * CHUNK]
    behind = torch.arange(num_whole, logits.shape[-1], device=logits.device)
    tokens = torch.cat((tokens, behind.expand(logits.shape[0], -1)), dim=-1)
    best = logits.gather(-1, tokens).topk(k, dim=-1).indices
    return tokens.gather(-1, best)


def logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:  # [F, V], [F, K] -> [F, K]
    """Return the log-probabilities of some tokens of every row, a few rows at a time.

    What is exponentiated should stay in a CPU's cache.
    """
    blocks = zip(
        torch.split(logits, ROWS_AT_ONCE),
        torch.split(tokens, ROWS_AT_ONCE),
        strict=True,
    )
    return torch.cat([rows.log_softmax(-1).gather(-1, some) for rows, some in blocks])


@dataclass(frozen=True, slots=True)
class SparseDraft(AbstractDraft):
    """A few candidates per frontier node; some nodes may have none.

    Attributes:
        candidates: All candidates, best first within each row.
        num_rows: F, the number of frontier nodes.
    """

    candidates: Children
    num_rows: int

    def top(self, k: int) -> Children:
        """Return at most ``k`` candidates of every node."""
        if self.candidates.size <= k:
            return self.candidates
        if self.num_rows == 1:
            return self.candidates.first(k)
        ranks = sibling_ranks(self.candidates.rows)
        return self.candidates.select((ranks < k).nonzero().flatten())

    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:
        """Return the sampling law of every node, zero rows where there is none."""
        candidates, known = self.candidates, self.known_rows()
        logprobs = candidates.logprobs
        logits = logprobs.new_full((self.num_rows, vocab_size), -torch.inf)
        logits[candidates.rows, candidates.tokens] = logprobs
        probs = torch.zeros_like(logits)
        probs[known] = sampling.probs(logits[known])
        return probs

    def known_rows(self) -> Tensor:  # [R]
        """Return the rows that have candidates."""
        rows: Tensor = torch.unique(self.candidates.rows)
        return rows

    def row_sources(self) -> Tensor:  # [F]
        """Return the source of each row's best candidate."""
        best = self.top(1)
        sources = torch.zeros(
            self.num_rows, dtype=torch.int64, device=best.sources.device
        )
        return sources.index_copy(0, best.rows, best.sources)


def listed(
    candidates: Iterable[Iterable[tuple[int, float]]],
    device: torch.device,
    source: int = 0,
) -> SparseDraft:
    """Return the draft that a drafter has in lists on the host.

    Args:
        candidates: For every frontier node its tokens with their log-probabilities,
            best first; an empty one where nothing is known.
        device: Where the target's trees live.
        source: Index of the drafter's source.
    """
    rows: list[int] = []
    tokens: list[int] = []
    logprobs: list[float] = []
    num_rows = 0
    for row, of_node in enumerate(candidates):
        num_rows = row + 1
        for token, logprob in of_node:
            rows.append(row)
            tokens.append(token)
            logprobs.append(logprob)
    children = Children(
        rows=torch.tensor(rows, dtype=torch.int64, device=device),
        tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
        logprobs=torch.tensor(logprobs, dtype=torch.float32, device=device),
        sources=torch.full((len(rows),), source, dtype=torch.int64, device=device),
    )
    return SparseDraft(children, num_rows)
