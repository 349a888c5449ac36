"""Candidates copied from the text itself: no draft model, no training.

Prompt lookup (apoorvumang/prompt-lookup-decoding) finds the text's last n-gram earlier
in the text and proposes what came next. Here every node of a tree is looked up by its
own path, so several matches become several branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treespec.draft import AbstractDraft, Children, SparseDraft
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.errors import TreespecError, require_integer


@dataclass(frozen=True, slots=True)
class PromptLookup(AbstractDrafter):
    """Proposes the tokens that followed the same n-gram earlier in the text.

    The longest n-gram that occurred before speaks first; shorter ones share what it
    leaves open, so that every candidate has a probability to be ranked by (prediction
    by partial matching, method A: after a context seen t times, 1 / (t + 1) is left to
    the next shorter one).

    Attributes:
        max_ngram: Longest n-gram that is looked up.
        min_ngram: Shortest one.
        max_candidates: Most candidates for one node.
    """

    source_names = ("prompt_lookup",)
    hidden_layers = ()

    max_ngram: int = 3
    min_ngram: int = 1
    max_candidates: int = 8

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_integer("drafter.max_ngram", self.max_ngram, 1)
        require_integer("drafter.min_ngram", self.min_ngram, 1)
        require_integer("drafter.max_candidates", self.max_candidates, 1)
        if self.min_ngram > self.max_ngram:
            raise TreespecError(
                "drafter.min_ngram must be between 1 and drafter.max_ngram, got "
                f"min_ngram={self.min_ngram} and max_ngram={self.max_ngram}"
            )

    def start(self, setting: DraftSetting) -> PromptLookupSession:
        """Return a session that indexes each request's text."""
        return PromptLookupSession(self, setting)


class _NgramIndex:
    """What followed each n-gram of one text, most recent last.

    An n-gram at the very end of the text has no follower yet, so the text never
    matches itself.
    """

    def __init__(self, drafter: PromptLookup) -> None:
        self._drafter = drafter
        self.tokens: list[int] = []
        self._followers: dict[tuple[int, ...], dict[int, int]] = {}

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end of the text."""
        for token in tokens:
            for context in self._contexts(self.tokens):
                counts = self._followers.setdefault(context, {})
                counts[token] = counts.pop(token, 0) + 1
            self.tokens.append(token)

    def candidates(self, path: Sequence[int]) -> dict[int, float]:
        """Return probabilities of what may follow the text and ``path``, best first."""
        drafter = self._drafter
        tail = [*self.tokens[-drafter.max_ngram :], *path]
        probabilities: dict[int, float] = {}
        left = 1.0
        for context in self._contexts(tail):
            counts = self._followers.get(context)
            if not counts:
                continue
            total = sum(counts.values()) + 1
            # Most recent first among equals: sorted() is stable.
            recent = reversed(counts.items())
            for token, count in sorted(recent, key=lambda item: -item[1]):
                probabilities.setdefault(token, left * count / total)
            left /= total
            if len(probabilities) >= drafter.max_candidates:
                break
        best = sorted(probabilities.items(), key=lambda item: -item[1])
        return dict(best[: drafter.max_candidates])

    def _contexts(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the n-grams that end ``text``, longest first."""
        longest = min(self._drafter.max_ngram, len(text))
        shortest = self._drafter.min_ngram
        return [tuple(text[-n:]) for n in range(longest, shortest - 1, -1)]


class PromptLookupSession(AbstractDraftSession):
    """An n-gram index per request."""

    def __init__(self, drafter: PromptLookup, setting: DraftSetting) -> None:
        """Begin without requests."""
        self._drafter, self._setting = drafter, setting
        self._indices: dict[int, _NgramIndex] = {}

    @property
    def num_forwards(self) -> int:
        """There is no draft model."""
        return 0

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Index the prompt."""
        index = _NgramIndex(self._drafter)
        index.append(prompt)
        self._indices[request] = index

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return what followed each node's n-gram; nothing follows end of sequence."""
        return [self._expand(frontier) for frontier in frontiers]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Index the committed tokens."""
        self._indices[request].append(feedback.tokens)

    def release(self, request: int) -> None:
        """Forget the request."""
        del self._indices[request]

    def _expand(self, frontier: Frontier) -> SparseDraft:
        index = self._indices[frontier.request]
        rows: list[int] = []
        tokens: list[int] = []
        logprobs: list[float] = []
        for row, path in enumerate(_paths(frontier)):
            if path and path[-1] in self._setting.eos_ids:
                continue
            for token, probability in index.candidates(path).items():
                rows.append(row)
                tokens.append(token)
                logprobs.append(math.log(probability))
        device = self._setting.device
        children = Children(
            rows=torch.tensor(rows, dtype=torch.int64, device=device),
            tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
            logprobs=torch.tensor(logprobs, dtype=torch.float32, device=device),
            sources=torch.zeros(len(rows), dtype=torch.int64, device=device),
        )
        return SparseDraft(children, frontier.nodes.shape[0])


def _paths(frontier: Frontier) -> list[list[int]]:
    """Return the drafted tokens from the root down to each frontier node."""
    if frontier.depth == 0:
        return [[]]
    host = frontier.tree.host()
    return [
        [host.tokens[node] for node in host.path(leaf)]
        for leaf in frontier.nodes.tolist()
    ]
