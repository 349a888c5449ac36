"""Candidates copied from the text: which, in which order, and where they end."""

import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import greedy_table, make_tree, spoken
from tests.strategies import repeatable
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftSetting, Feedback, Frontier, PromptLookup
from treespec.drafters.prompt_lookup import NEGLIGIBLE, blend
from treespec.drafters.suffix_automaton import Context, Follower
from treespec.errors import TreespecError
from treespec.policies import Chain, TopKTree
from treespec.tree import NO_PARENT, TokenTree
from treespec.verifiers import TreeAttention


def candidates(
    drafter: PromptLookup,
    text: Sequence[int],
    tree: TokenTree | None = None,
    nodes: Sequence[int] = (0,),
    eos_ids: Sequence[int] = (),
) -> list[dict[int, float]]:
    """What may follow each node, with probabilities, best first."""
    setting = DraftSetting(50, torch.device("cpu"), frozenset(eos_ids), 0)
    session = drafter.start(setting)
    session.admit(3, text[:1], 0)
    session.commit(3, Feedback((), tuple(text[1:])))
    tree = tree or make_tree([text[-1]], [NO_PARENT])
    depth = len(tree.host().path(nodes[0]))
    (draft,) = session.expand([Frontier(3, tree, torch.tensor(nodes), depth)])
    assert session.num_forwards == 0
    found: list[dict[int, float]] = [{} for _ in nodes]
    children = draft.top(50)
    for row, token, logprob in zip(
        children.rows.tolist(),
        children.tokens.tolist(),
        children.logprobs.tolist(),
        strict=True,
    ):
        found[row][token] = math.exp(logprob)
    return found


def naive(drafter: PromptLookup, text: Sequence[int]) -> dict[int, float]:
    """The same by looking through the whole text again for every length."""
    found: dict[int, float] = {}
    left, seen = 1.0, []
    for length in range(drafter.max_ngram, drafter.min_ngram - 1, -1):
        suffix = list(text[-length:])
        places = [
            end
            for end in range(length, len(text))
            if list(text[end - length : end]) == suffix
        ]
        if len(suffix) < length or not places or places in seen:
            continue
        seen.append(places)
        followers = [text[end] for end in places]
        latest = {token: end for end, token in zip(places, followers, strict=True)}
        novelty = 2 * len(latest)
        trust = len(followers) * length
        best = sorted(latest, key=lambda t: (-followers.count(t), -latest[t]))
        for token in best[: drafter.max_candidates]:
            share = trust / (trust + novelty) * followers.count(token) / len(followers)
            found[token] = found.get(token, 0.0) + left * share
        left *= novelty / (trust + novelty)
        if left < NEGLIGIBLE:
            break
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return dict(ranked[: drafter.max_candidates])


@repeatable
@given(
    st.one_of(
        st.lists(st.integers(0, 3), min_size=1, max_size=8),
        st.lists(st.integers(0, 2), min_size=20, max_size=40),
    ),
    st.sampled_from([1, 2, 3, 64]),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_candidates_are_those_of_a_naive_search(
    text: list[int], low: int, high: int, most: int
) -> None:
    drafter = PromptLookup(max(low, high), min(low, high), most)
    (found,) = candidates(drafter, text)
    expected = naive(drafter, text)
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-5)
    assert sum(found.values()) <= 1 + 1e-6


def test_the_longest_match_speaks_first_and_shorter_ones_share_the_rest() -> None:
    # 7 8 was followed by 1; 8 alone by 1, 2 and 3.
    text = [7, 8, 1, 5, 8, 2, 6, 8, 3, 7, 8]
    (found,) = candidates(PromptLookup(max_ngram=2), text)
    pair = 2 / (2 + 2)  # two tokens, once, against one follower that counts twice
    single = 3 / (3 + 6)  # one token, three times, against three followers
    share = (1 - pair) * single / 3
    assert found == pytest.approx({1: pair + share, 3: share, 2: share})
    assert list(found) == [1, 3, 2], "the more recent first"


def test_a_context_seen_often_leaves_less_to_shorter_ones() -> None:
    (once,) = candidates(PromptLookup(), [7, 1, 7])
    (often,) = candidates(PromptLookup(), [7, 1, 7, 1, 7, 1, 7])
    (divided,) = candidates(PromptLookup(), [7, 1, 7, 2, 7])
    assert often[1] > once[1] > divided[2] == divided[1]


def test_a_long_match_is_trusted_although_it_was_seen_once() -> None:
    """It used to count as little as a match of one token: one half."""
    passage = list(range(10, 30))
    text = [*passage, 1, 2, *passage]
    (short,) = candidates(PromptLookup(max_ngram=1), text)
    (long,) = candidates(PromptLookup(max_ngram=64), text)
    assert short[1] == pytest.approx(1 / 3)
    assert long[1] == pytest.approx(20 / 22)


def test_candidates_may_be_certain_but_never_more() -> None:
    (found,) = candidates(PromptLookup(64), [3] * 400)
    assert 0.99 < found[3] <= 1


def test_a_match_is_never_the_suffix_itself() -> None:
    """Public case 19: the end of the text matches itself and nothing follows it."""
    assert candidates(PromptLookup(), [1, 2, 3, 4]) == [{}]
    assert list(candidates(PromptLookup(), [4, 4])[0]) == [4]


def test_an_eos_is_copied_but_nothing_after_it() -> None:
    """Public case 19: an EOS inside the copied span cuts it."""
    text, eos = [5, 6, 9, 7, 7, 5, 6], 9
    (after_root,) = candidates(PromptLookup(), text, eos_ids=[eos])
    assert next(iter(after_root)) == eos
    tree = make_tree([6, eos], [NO_PARENT, 0])
    assert candidates(PromptLookup(), text, tree, [1], eos_ids=[eos]) == [{}]
    (uncut,) = candidates(PromptLookup(), text, tree, [1])
    assert next(iter(uncut)) == 7


def test_every_node_is_looked_up_by_its_own_path() -> None:
    text = [1, 2, 3, 4, 1, 2, 5, 6, 9, 2]
    tree = make_tree([2, 3, 5, 9], [NO_PARENT, 0, 0, 0])
    by_path = candidates(PromptLookup(), text, tree, [1, 2, 3])
    assert [list(found) for found in by_path] == [[4], [6], [2]]


def test_drafted_tokens_are_not_learned() -> None:
    """A rejected path must not be found again as if it were text."""
    setting = DraftSetting(50, torch.device("cpu"), frozenset(), 0)
    session = PromptLookup().start(setting)
    session.admit(0, [1, 2], 0)
    tree = make_tree([2, 1, 2], [NO_PARENT, 0, 1])
    for _ in range(2):
        frontier = Frontier(0, tree, torch.tensor([2]), 2)
        (draft,) = session.expand([frontier])
        assert draft.top(9).size == 0


def test_no_match_is_a_plain_step_and_counted_as_such() -> None:
    """Public case 19: a round without candidates."""
    decoder = SpeculativeDecoder(
        greedy_table(spoken(range(10, 30), 0, 2), 32),
        PromptLookup(),
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(4, 2, 8),
    )
    result = decoder.generate([[1, 2]], max_new_tokens=6)[0]
    assert result.tokens == (10, 11, 12, 13, 14, 15)
    assert len(result.steps) == 5
    for record in result.steps:
        assert (record.num_nodes, record.depth, record.width) == (0, 0, 0)
        assert record.nodes_by_depth == ()
        assert (record.num_committed, record.next_kind) == (1, "bonus")
    assert result.steps[0].max_depth == 4, "it was allowed to speculate"


def test_a_repeated_passage_is_accepted_whole() -> None:
    passage = [3, 7, 5, 9, 11, 4, 8]
    decoder = SpeculativeDecoder(
        greedy_table(spoken([*passage, *passage, *passage], 0, 1), 16),
        PromptLookup(),
        Chain(),
        Greedy(),
        TreeAttention(),
        Constant(4),
    )
    result = decoder.generate([[1]], max_new_tokens=21)[0]
    assert result.tokens == (*passage, *passage, *passage)
    assert [record.num_accepted for record in result.steps[-2:]] == [4, 2]
    assert result.steps[-2].accepted_sources == ("prompt_lookup",) * 4


def test_two_matches_with_the_same_follower_are_one_candidate() -> None:
    """Public case 19: two n-gram hits with the same token id are merged."""
    text = [5, 6, 9, 1, 5, 6, 9, 2, 6, 9, 3, 5, 6]
    (found,) = candidates(PromptLookup(64), text)
    assert list(found) == [9]


def test_a_tree_may_be_asked_about_layer_by_layer_or_all_at_once() -> None:
    """Each node's match goes on from its parent's, whoever asked for that one."""
    text = [1, 2, 3, 4, 1, 2, 3, 5, 2, 3, 6, 4, 1]
    tokens, parents = [1, 2, 3, 4, 5, 3, 2], [NO_PARENT, 0, 1, 2, 2, 0, 0]
    setting = DraftSetting(50, torch.device("cpu"), frozenset(), 0)
    session = PromptLookup(64).start(setting)
    session.admit(0, text, 0)
    whole = candidates(PromptLookup(64), text, make_tree(tokens, parents), range(7))
    for size, nodes, depth in ((1, [0], 0), (3, [1], 1), (5, [2], 2), (7, [5, 3], 3)):
        tree = make_tree(tokens[:size], parents[:size])
        (draft,) = session.expand([Frontier(0, tree, torch.tensor(nodes), depth)])
        answer = draft.top(9)
        for row, node in enumerate(nodes):
            assert answer.tokens[answer.rows == row].tolist() == list(whole[node])
    assert [list(found) for found in whole[1:3]] == [[3], [5, 4, 6]]


def test_the_next_step_begins_with_another_tree() -> None:
    """Node ids start again after a commit; matches of the old tree would mislead."""
    setting = DraftSetting(50, torch.device("cpu"), frozenset(), 0)
    session = PromptLookup().start(setting)
    session.admit(0, [1, 2, 3, 4, 5, 8, 6, 5, 7, 5, 7, 1], 0)
    one = Frontier(0, make_tree([1, 2], [NO_PARENT, 0]), torch.tensor([1]), 1)
    assert session.expand([one])[0].top(1).tokens.tolist() == [3]
    session.commit(0, Feedback((1,), (2, 3)))
    other = Frontier(0, make_tree([3, 4, 5], [NO_PARENT, 0, 1]), torch.tensor([2]), 2)
    assert session.expand([other])[0].top(1).tokens.tolist() == [8]


def test_shorter_contexts_are_not_asked_once_hardly_anything_is_left_open() -> None:
    """A loop of one token has as many contexts as an n-gram may be long."""

    def contexts() -> Iterator[Context]:
        yield Context(64, [Follower(2, 8, 5), Follower(1, 9, 6)])
        yield Context(63, [Follower(90, 7, 5)])
        pytest.fail("nothing is left for this one")

    found = dict(blend(contexts(), 4))
    assert sum(found.values()) == pytest.approx(1 - 4 / 196 * 2 / 5672)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"min_ngram": 0}, "min_ngram"),
        ({"min_ngram": 4, "max_ngram": 3}, "max_ngram"),
        ({"max_candidates": 0}, "max_candidates"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, int], key: str) -> None:
    with pytest.raises(TreespecError, match=key):
        PromptLookup(**arguments)


def test_a_released_request_is_forgotten() -> None:
    setting = DraftSetting(50, torch.device("cpu"), frozenset(), 0)
    session = PromptLookup().start(setting)
    session.admit(0, [1, 2, 1], 0)
    session.release(0)
    session.admit(0, [1], 0)
    frontier = Frontier(0, make_tree([1], [NO_PARENT]), torch.tensor([0]), 0)
    assert session.expand([frontier])[0].top(9).size == 0
