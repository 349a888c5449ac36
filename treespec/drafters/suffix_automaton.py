"""What followed the end of a text when the same tokens stood earlier in it.

A suffix automaton (Blumer et al., 1985) holds every substring of a text in a number of
states and steps that is linear in the text, and grows by one token at a time. A state
is a class of substrings that end at the same places; its *link* is the class of the
longest suffix that ends at more of them. Used for speculation by SAM-Decoding (arXiv
2411.10666); suffix trees are by SuffixDecoding (arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

_EMPTY = 0
"""The state of the empty string."""


class Match(NamedTuple):
    """Tokens that stand somewhere in an automaton's texts.

    Attributes:
        state: The state that they are in.
        length: How many there are.
    """

    state: int
    length: int


class Follower(NamedTuple):
    """A token that came next after a context; ordered by how well it is supported.

    Attributes:
        times: How often it came next.
        latest: Where it did so last: larger is more recent.
        token: The token id.
    """

    times: int
    latest: int
    token: int


class Context(NamedTuple):
    """Tokens with what came next after them.

    Attributes:
        length: How many tokens there are.
        followers: What came next, in no order; never empty.
    """

    length: int
    followers: list[Follower]


NO_MATCH = Match(_EMPTY, 0)


class SuffixAutomaton:
    """All substrings of one or more texts, and how often each token followed them.

    Appending a token and following one take constant time, averaged over a text, beside
    at most ``max_match`` steps to count. No match spans the border of two texts, and
    the end of a text is no match of itself, for nothing follows it.

    Attributes:
        max_match: Longest match, in tokens.
    """

    def __init__(self, max_match: int) -> None:
        """Begin without a text."""
        self.max_match = max_match
        # By state. A count is right where the shortest string of a state is not longer
        # than a match and its follower; others are never asked for.
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._count = [0]
        self._latest = [0]
        self._num_tokens = 0
        self.end_text()

    def end_text(self) -> None:
        """Let the next token begin another text."""
        self._whole = _EMPTY
        self._tail = NO_MATCH

    @property
    def end(self) -> Match:
        """The last tokens of the text, as many as a match may have."""
        return self._shortened(*self._tail, self.max_match)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, one after the other."""
        for token in tokens:
            self._append(token)

    def follow(self, match: Match, token: int) -> Match:
        """Return the longest match that ends with ``token`` and goes on from another.

        Whatever was appended since, the answer stands in the texts; it is the longest
        if the match is of after the last token that was appended.
        """
        state, length = match
        while token not in self._next[state]:
            state = self._link[state]
            if state < 0:
                return NO_MATCH
            length = self._length[state]
        return self._shortened(self._next[state][token], length + 1, self.max_match)

    def find(self, tokens: Iterable[int]) -> Match:
        """Return the longest match that ends with the last of ``tokens``."""
        match = NO_MATCH
        for token in tokens:
            match = self.follow(match, token)
        return match

    def contexts(self, match: Match, shortest: int) -> Iterator[Context]:
        """Yield the suffixes of a match that something followed, longest first.

        Of suffixes that stood at the same places only the longest is told: the shorter
        ones know nothing new.

        Args:
            match: The match, which may be too long to have been followed by anything.
            shortest: Fewest tokens of a suffix, at least 1.
        """
        state, length = match
        while length >= shortest:
            steps = self._next[state]
            if steps:
                count, latest = self._count, self._latest
                yield Context(
                    length,
                    [Follower(count[s], latest[s], t) for t, s in steps.items()],
                )
            state = self._link[state]
            length = self._length[state]

    def _append(self, token: int) -> None:
        """Add a token, then count the strings that end with it."""
        steps, link = self._next, self._link
        above = self._whole
        state = self._new_state(self._length[above] + 1, {}, _EMPTY, 0)
        while above >= 0 and token not in steps[above]:
            steps[above][token] = state
            above = link[above]
        # Where a text begins like an earlier one, all strings of the new state are
        # known: its link has them, and nothing leads to it.
        if above >= 0:
            link[state] = self._ending(above, token)
        self._whole = state
        self._num_tokens += 1
        self._count_suffixes(token)

    def _ending(self, above: int, token: int) -> int:
        """Return the state whose longest string is that of ``above``, then ``token``.

        If there is none, the strings up to that one get a state of their own: soon
        they end at more places than the longer ones.
        """
        steps, link = self._next, self._link
        state = steps[above][token]
        length = self._length[above] + 1
        if self._length[state] == length:
            return state
        split = self._new_state(
            length, dict(steps[state]), link[state], self._count[state]
        )
        link[state] = split
        while above >= 0 and steps[above].get(token) == state:
            steps[above][token] = split
            above = link[above]
        return split

    def _new_state(
        self, length: int, steps: dict[int, int], link: int, count: int
    ) -> int:
        self._next.append(steps)
        self._link.append(link)
        self._length.append(length)
        self._count.append(count)
        self._latest.append(self._num_tokens)
        return len(self._link) - 1

    def _count_suffixes(self, token: int) -> None:
        """Count the text's suffixes that a match and its follower may be."""
        state, length = self._tail
        self._tail = self._shortened(
            self._next[state][token], length + 1, self.max_match + 1
        )
        state = self._tail.state
        count, latest, link = self._count, self._latest, self._link
        while state > _EMPTY:
            count[state] += 1
            latest[state] = self._num_tokens
            state = link[state]

    def _shortened(self, state: int, length: int, most: int) -> Match:
        """Return the last ``most`` tokens of a string, or all if it has fewer."""
        if length > most:
            length = most
            while self._length[self._link[state]] >= most:
                state = self._link[state]
        return Match(state, length)
