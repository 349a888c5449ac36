"""Finished texts that later requests may copy from."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from treespec.drafters.suffix_automaton import SuffixAutomaton
from treespec.errors import require_integer


class SuffixMemory:
    """The texts of finished requests, for ``PromptLookup(memory=...)``.

    It lives as long as its owner keeps it, so with one the same prompt may get other
    trees after other prompts (and, under rules that look at the draft's law, another
    text of the same law). When the texts outgrow it, the
    oldest are forgotten whole until half of it is free, so that what is kept is read
    again only after as much has come in. Nothing is copied across the border of two
    texts. Corpora that outlive a request: SuffixDecoding (arXiv 2411.04975).

    Attributes:
        max_tokens: Most tokens of all texts; a longer text is not kept at all.
        max_ngram: Longest n-gram that is looked up in it.
        num_tokens: Tokens that it holds now.
        largest_token: Largest token id that it has seen; -1 before the first.
        automaton: The texts; another object once some were forgotten.
    """

    def __init__(self, max_tokens: int = 100_000, max_ngram: int = 64) -> None:
        """Begin without texts."""
        require_integer("drafter.memory.max_tokens", max_tokens, 1)
        require_integer("drafter.memory.max_ngram", max_ngram, 1)
        self.max_tokens, self.max_ngram = max_tokens, max_ngram
        self.num_tokens = 0
        self.largest_token = -1
        self.automaton = SuffixAutomaton(max_ngram)
        self._texts: deque[tuple[int, ...]] = deque()

    def add(self, text: Sequence[int]) -> None:
        """Keep a text; forget the oldest ones if they are too many."""
        if len(text) > self.max_tokens:
            return
        self._texts.append(tuple(text))
        self.num_tokens += len(text)
        self.largest_token = max(self.largest_token, *text)
        if self.num_tokens <= self.max_tokens:
            self._read(text)
        else:
            self._forget()

    def _forget(self) -> None:
        """Let go of the oldest texts; the latest one stays."""
        while len(self._texts) > 1 and self.num_tokens > self.max_tokens // 2:
            self.num_tokens -= len(self._texts.popleft())
        self.automaton = SuffixAutomaton(self.max_ngram)
        for text in self._texts:
            self._read(text)

    def _read(self, text: Sequence[int]) -> None:
        self.automaton.extend(text)
        self.automaton.end_text()
