"""An automaton against looking through all the texts again for every question."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import repeatable
from treespec.drafters.suffix_automaton import NO_MATCH, Match, SuffixAutomaton

Found = list[tuple[int, dict[int, tuple[int, int]]]]
"""Per context its length, and of each follower how often and where last."""


def told(automaton: SuffixAutomaton, match: Match, shortest: int) -> Found:
    found = []
    for context in automaton.contexts(match, shortest):
        tokens = [follower.token for follower in context.followers]
        assert len(tokens) == len(set(tokens)), "one candidate per token"
        followers = {f.token: (f.times, f.latest) for f in context.followers}
        found.append((context.length, followers))
    return found


def naive(
    texts: Sequence[Sequence[int]], path: Sequence[int], longest: int, shortest: int
) -> Found:
    """What followed each suffix of the last text and the path, longest first."""
    tail = [*texts[-1], *path]
    found: Found = []
    seen: list[list[tuple[int, int]]] = [[]]
    for length in range(min(longest, len(tail)), shortest - 1, -1):
        places = [
            (text, end)
            for text, tokens in enumerate(texts)
            for end in range(length, len(tokens) + 1)
            if list(tokens[end - length : end]) == tail[-length:]
        ]
        if places in seen:
            continue
        seen.append(places)
        followers: dict[int, tuple[int, int]] = {}
        for text, end in places:
            if end < len(texts[text]):
                token = texts[text][end]
                latest = sum(map(len, texts[:text])) + end + 1
                followers[token] = (followers.get(token, (0, 0))[0] + 1, latest)
        if followers:
            found.append((length, followers))
    return found


some_texts = st.one_of(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), max_size=1),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=4),
    st.lists(st.lists(st.just(0), min_size=1, max_size=9), max_size=3),
)


@repeatable
@given(
    some_texts,
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.sampled_from([(1, 1), (2, 1), (3, 2), (5, 1), (64, 1), (64, 3)]),
)
def test_it_tells_what_a_naive_search_finds_after_every_token(
    texts: list[list[int]], path: list[int], bounds: tuple[int, int]
) -> None:
    """Length, followers and counts, at the end of the text and below it."""
    longest, shortest = bounds
    automaton = SuffixAutomaton(longest)
    read: list[list[int]] = []
    for text in texts:
        automaton.end_text()
        read.append([])
        for token in text:
            automaton.extend([token])
            read[-1].append(token)
            match = automaton.end
            for depth in range(len(path) + 1):
                expected = naive(read, path[:depth], longest, shortest)
                assert told(automaton, match, shortest) == expected
                if depth < len(path):
                    match = automaton.follow(match, path[depth])


def test_the_end_of_the_text_is_no_match_of_itself() -> None:
    """Public case 19: it is found in the text, but nothing follows it."""
    automaton = SuffixAutomaton(4)
    automaton.extend([1, 2, 3, 4])
    assert automaton.end.length == 4
    assert told(automaton, automaton.end, 1) == []
    automaton.extend([3])
    assert told(automaton, automaton.end, 1) == [(1, {4: (1, 4)})]


def test_a_token_that_never_occurred_ends_a_match() -> None:
    automaton = SuffixAutomaton(4)
    automaton.extend([1, 2, 1])
    assert automaton.follow(automaton.end, 7) == NO_MATCH
    assert automaton.find([1, 7, 2]).length == 1
    assert automaton.find([7, 1, 2]).length == 2
    assert automaton.find([]) == NO_MATCH


def test_no_match_spans_two_texts() -> None:
    automaton = SuffixAutomaton(4)
    automaton.extend([1, 2])
    automaton.end_text()
    automaton.extend([3, 4])
    assert told(automaton, automaton.find([1, 2]), 1) == []
    assert told(automaton, automaton.find([2, 3]), 1) == [(1, {4: (1, 4)})]


class Counted(list[int]):
    """A list that counts how often it is looked into."""

    num_looks = 0

    def __getitem__(self, index: object) -> int:  # type: ignore[override]
        self.num_looks += 1
        return super().__getitem__(index)  # type: ignore[index]


@pytest.mark.parametrize("max_match", [1, 8, 64])
@pytest.mark.parametrize(
    "period", [[7], [1, 2], [1, 2, 1, 3]], ids=["aaaa", "abab", "abacabac"]
)
def test_a_periodic_text_is_not_quadratic(period: list[int], max_match: int) -> None:
    """Every suffix of "aaaa" is a state of its own: counting them all is n * n / 2.

    Operations are counted, not seconds: links followed, per token.
    """
    automaton = SuffixAutomaton(max_match)
    automaton._link = links = Counted(automaton._link)
    for _ in range(2):
        before = links.num_looks
        automaton.extend(period * (2000 // len(period)))
        assert (links.num_looks - before) / 2000 < max_match + 8


def test_a_text_of_any_kind_costs_a_few_steps_per_token() -> None:
    number, text = 1, []
    for _ in range(4000):
        number = number * 48271 % 2147483647
        text.append(number % 50)
    automaton = SuffixAutomaton(64)
    automaton._link = links = Counted(automaton._link)
    automaton.extend(text)
    assert links.num_looks / len(text) < 12
    assert len(automaton._link) < 2 * len(text), "linear in states as well"
    before = links.num_looks
    match = automaton.end
    for token in text[:500]:
        match = automaton.follow(match, token)
    assert (links.num_looks - before) / 500 < 6
