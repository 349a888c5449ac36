"""Candidates copied from the text itself: no draft model, no training.

Prompt lookup (apoorvumang/prompt-lookup-decoding) finds the text's last n-gram earlier
in the text and proposes what came next. Here every node of a tree is looked up by its
own path, so several matches become several branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain

import torch

from treespec.draft import AbstractDraft, SparseDraft, listed
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.drafters.suffix_automaton import Context, Match, SuffixAutomaton
from treespec.drafters.suffix_memory import SuffixMemory
from treespec.errors import TreespecError, require_integer

NEGLIGIBLE = 1e-3
"""Probability left open that shorter contexts are no longer asked for."""


@dataclass(frozen=True, slots=True)
class PromptLookup(AbstractDrafter):
    """Proposes the tokens that followed the same n-gram earlier in the text.

    The longest n-gram that occurred before speaks first; shorter ones share what it
    leaves open, so that every candidate has a probability to be ranked by (prediction
    by partial matching). A context of m tokens, seen t times with d different
    followers, leaves 2 d / (2 d + t m) open: the estimate of Witten and Bell, method C,
    in which every time counts m / 2 times. So a long match is trusted although it was
    seen only once, and one with many different followers is not.

    With short n-grams this is prompt lookup; with long ones it is the suffix lookup of
    SuffixDecoding (arXiv 2411.04975) and SAM-Decoding (arXiv 2411.10666).

    Attributes:
        max_ngram: Longest n-gram that is looked up.
        min_ngram: Shortest one.
        max_candidates: Most candidates for one node.
        memory: Texts of earlier requests, which share what the request's own text
            leaves open; it takes in every text that ends. ``None`` keeps requests
            apart.
    """

    source_names = ("prompt_lookup",)
    hidden_layers = ()

    max_ngram: int = 3
    min_ngram: int = 1
    max_candidates: int = 8
    memory: SuffixMemory | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        require_integer("drafter.max_ngram", self.max_ngram, 1)
        require_integer("drafter.min_ngram", self.min_ngram, 1)
        require_integer("drafter.max_candidates", self.max_candidates, 1)
        if not isinstance(self.memory, SuffixMemory | None):
            raise TreespecError(
                f"drafter.memory must be null or a SuffixMemory, got {self.memory!r}; "
                "choose drafter=suffix_warm"
            )
        if self.min_ngram > self.max_ngram:
            raise TreespecError(
                "drafter.min_ngram must be between 1 and drafter.max_ngram, got "
                f"min_ngram={self.min_ngram} and max_ngram={self.max_ngram}"
            )

    def start(self, setting: DraftSetting) -> PromptLookupSession:
        """Return a session that indexes each request's text.

        Raises:
            TreespecError: If the memory holds tokens that the target does not know.
        """
        if self.memory is not None and self.memory.largest_token >= setting.vocab_size:
            raise TreespecError(
                f"drafter.memory holds token {self.memory.largest_token}, but the "
                f"target's vocabulary has {setting.vocab_size} tokens; give every "
                "tokenizer a memory of its own"
            )
        return PromptLookupSession(self, setting)

    def cold(self) -> PromptLookup:
        """Return the same drafter without the texts of earlier requests."""
        return replace(self, memory=None)


class PromptLookupSession(AbstractDraftSession):
    """An index of each request's text."""

    def __init__(self, drafter: PromptLookup, setting: DraftSetting) -> None:
        """Begin without requests."""
        self._drafter, self._setting = drafter, setting
        self._texts: dict[int, _Text] = {}

    @property
    def num_forwards(self) -> int:
        """There is no draft model."""
        return 0

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Index the prompt."""
        text = _Text(self._drafter, self._setting.eos_ids)
        text.append(prompt)
        self._texts[request] = text

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return what followed each node's n-gram; nothing follows end of sequence."""
        return [self._expand(frontier) for frontier in frontiers]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Index the committed tokens."""
        self._texts[request].append(feedback.tokens)

    def release(self, request: int) -> None:
        """Forget the request; its text goes into the memory, if there is one."""
        text = self._texts.pop(request)
        if self._drafter.memory is not None:
            self._drafter.memory.add(text.tokens)

    def _expand(self, frontier: Frontier) -> SparseDraft:
        text = self._texts[frontier.request]
        candidates = [
            [(token, math.log(prob)) for token, prob in text.candidates(node)]
            for node in text.read(frontier)
        ]
        return listed(candidates, self._setting.device)


class _Text:
    """One request's text, and the tree that is being grown at its end.

    Attributes:
        tokens: The text.
    """

    def __init__(self, drafter: PromptLookup, eos_ids: frozenset[int]) -> None:
        self._drafter, self._eos_ids = drafter, eos_ids
        self.tokens: list[int] = []
        self._own = SuffixAutomaton(drafter.max_ngram)
        # Where to look, own text first, and where each node of the current tree was
        # found there; nothing is looked up after an end of sequence.
        self._places: list[SuffixAutomaton] = []
        self._matches: list[tuple[Match, ...] | None] = []

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end of the text; they end the current tree."""
        self.tokens.extend(tokens)
        self._own.extend(tokens)
        self._matches.clear()

    def read(self, frontier: Frontier) -> list[int]:
        """Match the nodes that are new, and return the ids of the frontier's."""
        tree = frontier.tree
        if tree.size <= len(self._matches):  # nothing is new, or the tree is another
            self._matches.clear()
        if not self._matches:
            self._begin_tree()
        first = len(self._matches)
        parts = (tree.tokens[first:], tree.parents[first:], frontier.nodes)
        numbers = torch.cat(parts).tolist()  # waits for the device once
        num_new = tree.size - first
        for token, parent in zip(
            numbers[:num_new], numbers[num_new : 2 * num_new], strict=True
        ):
            self._matches.append(self._follow(self._matches[parent], token))
        return numbers[2 * num_new :]

    def candidates(self, node: int) -> Iterable[tuple[int, float]]:
        """Return what may follow a node, with probabilities, best first."""
        matches, shortest = self._matches[node], self._drafter.min_ngram
        if matches is None:
            return ()
        contexts = (
            place.contexts(match, shortest)
            for place, match in zip(self._places, matches, strict=True)
        )
        return blend(chain.from_iterable(contexts), self._drafter.max_candidates)

    def _begin_tree(self) -> None:
        """Match the root. The memory may have grown since the last tree."""
        self._places, matches = [self._own], [self._own.end]
        if self._drafter.memory is not None:
            others = self._drafter.memory.automaton
            self._places.append(others)
            matches.append(others.find(self.tokens[-others.max_match :]))
        self._matches.append(tuple(matches))

    def _follow(
        self, matches: tuple[Match, ...] | None, token: int
    ) -> tuple[Match, ...] | None:
        if matches is None or token in self._eos_ids:
            return None
        return tuple(
            place.follow(match, token)
            for place, match in zip(self._places, matches, strict=True)
        )


def blend(contexts: Iterable[Context], most: int) -> list[tuple[int, float]]:
    """Return tokens with the probabilities that contexts give them, best first.

    Each context brings at most ``most`` followers, and hands what its escape estimate
    leaves open on to the next.

    Args:
        contexts: The contexts, the one that speaks first in front.
        most: Most tokens.
    """
    probabilities: dict[int, float] = {}
    left = 1.0
    for length, followers in contexts:
        total = sum(follower.times for follower in followers)
        escape = 2 * len(followers) / (2 * len(followers) + total * length)
        share = left * (1 - escape) / total
        for times, _, token in nlargest(most, followers):
            probabilities[token] = probabilities.get(token, 0.0) + share * times
        left *= escape
        if left < NEGLIGIBLE:
            break
    return nlargest(most, probabilities.items(), key=lambda item: item[1])
