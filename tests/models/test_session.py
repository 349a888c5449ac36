"""What a session feeds, what it keeps, and what a row may see."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import (
    CLOSE,
    adapted,
    assert_cache_is_fresh,
    assert_no_slot_leaks,
    plain_logits,
    reference,
)
from tests.scripts import (
    Text,
    greedy_table,
    make_tree,
    mixing,
    node_texts,
    random_tree,
)
from tests.tiny import FAMILIES, Family
from treespec.models import session as session_module
from treespec.models.base import AbstractLanguageModel
from treespec.models.cache import UNSEEN
from treespec.models.session import CachedSequence, Feed, ModelSession
from treespec.models.table import TableModel
from treespec.tree import NO_PARENT, TokenTree

repeatable = settings(derandomize=True, deadline=None, max_examples=60)


def start(
    model: AbstractLanguageModel, prompt: list[int], num_slots: int = 64
) -> tuple[ModelSession, CachedSequence]:
    session = ModelSession(model, num_slots)
    sequence = session.admit(prompt, num_slots)
    assert sequence is not None
    return session, sequence


def feed_tree(sequence: CachedSequence, tree: TokenTree) -> Feed:
    return Feed(sequence, tree, torch.arange(1, tree.size))


@pytest.mark.parametrize("family", FAMILIES)
def test_each_node_says_what_a_plain_forward_of_its_path_says(family: Family) -> None:
    """Public case 07: a node's position is its depth, not its place in the row.

    Learned positions (GPT-2) and windows of 8 (Gemma 3) show a wrong one at once.
    """
    prompt = [1, *range(4, 17)]
    tree = random_tree(prompt[-1], 12, max_depth=4, vocab_size=32, seed=0)
    session, sequence = start(adapted(family, 1), prompt)
    logits = session.run([feed_tree(sequence, tree)])[0].logits
    module = reference(family, 1)
    expected = [plain_logits(module, text)[-1] for text in node_texts(tree, prompt)]
    torch.testing.assert_close(logits, torch.stack(expected), **CLOSE)


@pytest.mark.parametrize("prompt", [[1, 4, 9], [1, *range(4, 17)]])
def test_a_tree_may_be_deeper_than_a_sliding_window(prompt: list[int]) -> None:
    """A window slides along a path too: a deep node no longer sees the first ones."""
    tree = random_tree(prompt[-1], 14, max_depth=11, vocab_size=32, seed=3)
    session, sequence = start(adapted("gemma3", 1), prompt)
    logits = session.run([feed_tree(sequence, tree)])[0].logits
    module = reference("gemma3", 1)
    expected = [plain_logits(module, text)[-1] for text in node_texts(tree, prompt)]
    torch.testing.assert_close(logits, torch.stack(expected), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_a_tree_may_be_fed_one_after_the_other(family: Family) -> None:
    """As a draft model reads its own tree: each layer in a forward of its own."""
    prompt = [1, 7, 9, 3, 4, 11, 12, 30, 2, 5]
    parents = [NO_PARENT, 0, 0, 0, 1, 1, 3, 4, 6, 6]
    tree = make_tree([5, 8, 9, 10, 11, 12, 13, 14, 15, 16], parents)
    session, sequence = start(adapted(family, 1), prompt)
    rows = [session.run([Feed(sequence)])[0].logits]
    for layer in ([1, 2, 3], [4, 5, 6], [7, 8, 9]):
        feed = Feed(sequence, tree, torch.tensor(layer))
        rows.append(session.run([feed])[0].logits)
    module = reference(family, 1)
    expected = [plain_logits(module, text)[-1] for text in node_texts(tree, prompt)]
    torch.testing.assert_close(torch.cat(rows), torch.stack(expected), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_in_one_row_do_not_see_each_other(family: Family) -> None:
    prompts = ([1, 5, 6, 7, 8, 9], [3], [1, *range(9, 24)])
    session = ModelSession(adapted(family, 1), 96)
    feeds, expected = [], []
    for seed, prompt in enumerate(prompts):
        sequence = session.admit(prompt, 32)
        assert sequence is not None
        tree = random_tree(prompt[-1], 5 + seed, 3, vocab_size=32, seed=seed)
        feeds.append(feed_tree(sequence, tree))
        texts = node_texts(tree, prompt)
        module = reference(family, 1)
        expected.append([plain_logits(module, text)[-1] for text in texts])
    for output, rows in zip(session.run(feeds), expected, strict=True):
        torch.testing.assert_close(output.logits, torch.stack(rows), **CLOSE)


PATHS = [(2, 6), (1, 3), (1, 4), (2, 5), (2,), ()]
"""Nodes 1 and 2 are children of the root, 3 and 4 of node 1, 5 and 6 of node 2."""


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_an_accepted_path_need_not_be_contiguous(
    family: Family, path: tuple[int, ...]
) -> None:
    """Public case 04: the move of accepted keys copied the wrong ones.

    Root children a, b; a has c, d; b has e, f. Three rounds in a row keep a path whose
    slots have gaps and overlap the place where a compact cache would put them.
    """
    text = [1, 9, 4, 17]
    session, sequence = start(adapted(family, 1), list(text))
    module = reference(family, 1)
    for round_ in range(3):
        tokens = [text[-1], *(4 + (7 * round_ + 3 * i) % 27 for i in range(6))]
        tree = make_tree(tokens, [NO_PARENT, 0, 0, 1, 1, 2, 2])
        logits = session.run([feed_tree(sequence, tree)])[0].logits
        torch.testing.assert_close(logits[0], plain_logits(module, text)[-1], **CLOSE)
        committed = [*(tokens[node] for node in path), 20 + round_]
        session.commit(sequence, path, committed)
        text += committed
        assert sequence.tokens == text
        assert sequence.num_pending == 1, "only the bonus has not been fed"
        assert_no_slot_leaks(session, [sequence])
        assert_cache_is_fresh(session, sequence, module)
    logits = session.run([Feed(sequence)])[0].logits
    torch.testing.assert_close(logits[0], plain_logits(module, text)[-1], **CLOSE)


def test_only_the_fed_part_of_an_accepted_path_keeps_slots() -> None:
    """A draft model never reads the last layer that it proposes."""
    session, sequence = start(greedy_table(mixing(9), 9), [1, 2])
    tree = make_tree([2, 3, 4, 5], [NO_PARENT, 0, 1, 2])
    session.run([Feed(sequence)])
    session.run([Feed(sequence, tree, torch.tensor([1]))])
    session.commit(sequence, (1, 2, 3), [3, 4, 5, 6])
    assert sequence.num_pending == 3
    assert_no_slot_leaks(session, [sequence])
    session.run([Feed(sequence)])
    assert sequence.num_pending == 0


def test_a_path_is_not_kept_behind_pending_tokens() -> None:
    """A request whose tree was not fed is told its text only."""
    session, sequence = start(greedy_table(mixing(9), 9), [1, 2])
    session.commit(sequence, (1, 2), [3, 4, 5])
    assert (sequence.tokens, sequence.line) == ([1, 2, 3, 4, 5], [])
    assert session.cache.num_live == 0


@repeatable
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.lists(st.integers(0, 10**6), min_size=0, max_size=14),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
)
def test_any_tree_and_any_path_leave_the_text_readable(
    prompt: list[int], shape: list[int], ends: list[int]
) -> None:
    """A table model reads each row's text back from the slots that it may see."""
    parents = [NO_PARENT, *(number % (node + 1) for node, number in enumerate(shape))]
    model = greedy_table(mixing(9), 9)
    session, sequence = start(model, list(prompt))
    text = list(prompt)
    for end in ends:
        tree = make_tree([text[-1], *((number + end) % 9 for number in shape)], parents)
        logits = session.run([feed_tree(sequence, tree)])[0].logits
        seen = [logits.argmax(dim=-1).tolist()]
        assert seen == [[mixing(9)(t) for t in node_texts(tree, text)]]
        path = tree.host().path(end % tree.size)
        committed = [*(int(tree.tokens[node]) for node in path), end % 9]
        session.commit(sequence, path, committed)
        text += committed
        assert_no_slot_leaks(session, [sequence])


def test_positions_go_with_the_text_and_the_depth() -> None:
    model = greedy_table(mixing(9), 9)
    session, sequence = start(model, [1, 2, 3])
    session.run([feed_tree(sequence, make_tree([3, 4, 5, 6], [NO_PARENT, 0, 0, 1]))])
    rows = model.forwards[-1]
    assert rows.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert rows.positions.tolist() == [0, 1, 2, 3, 3, 4]
    assert rows.logit_rows.tolist() == [2, 3, 4, 5], "the root, then every node"


@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 5])
def test_a_prompt_is_read_chunk_by_chunk(
    extra: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Public case 26: a prefill left exactly one token over."""
    monkeypatch.setattr(session_module, "PREFILL_CHUNK", 4)
    prompt = [i % 9 for i in range(2 * 4 + extra)]
    model = greedy_table(mixing(9), 9)
    session, sequence = start(model, prompt)
    logits = session.run([Feed(sequence)])[0].logits
    assert logits.shape[0] == 1
    assert int(logits.argmax()) == mixing(9)(tuple(prompt))
    sizes = [rows.tokens.shape[0] for rows in model.forwards]
    assert max(sizes) <= 4
    assert sum(sizes) == len(prompt)
    assert len(sizes) == -(-len(prompt) // 4)
    assert session.num_forwards == 1, "eight forwards of a draft once were one reading"


def test_a_rewound_text_is_forgotten() -> None:
    session, sequence = start(greedy_table(mixing(9), 9), [1, 2, 3, 4])
    session.run([Feed(sequence)])
    session.rewind(sequence, 2)
    assert sequence.tokens == [1, 2]
    assert_no_slot_leaks(session, [sequence])
    assert session.cache.positions[2:].unique().tolist() == [UNSEEN]
    sequence.tokens.extend([7, 8])
    logits = session.run([Feed(sequence)])[0].logits
    assert int(logits.argmax()) == mixing(9)((1, 2, 7, 8))


def test_a_skipped_text_costs_no_forward_and_is_seen_by_what_comes_behind_it() -> None:
    model = adapted("llama", 1)
    session, sequence = start(model, [1, 4, 5, 6, 7])
    session.skip(sequence, 4)
    assert (session.num_forwards, sequence.num_pending) == (0, 1)
    logits = session.run([Feed(sequence)])[0].logits
    assert logits.shape[0] == 1
    assert logits.isfinite().all()
    assert session.cache.positions[:5].tolist() == [0, 1, 2, 3, 4]
    assert sequence.line == [0, 1, 2, 3, 4]


def test_a_released_request_makes_room_for_the_next() -> None:
    texts: list[Text] = []

    def table(text: Text) -> list[float]:
        texts.append(text)
        return [0.0, 1.0]

    session = ModelSession(TableModel(table, 2), 8)
    first, second = session.admit([0, 1], 4), session.admit([1, 1, 0], 4)
    assert first is not None
    assert second is not None
    assert session.admit([1], 4) is None
    session.run([Feed(first), Feed(second)])
    session.release(first)
    third = session.admit([1], 4)
    assert third is not None
    session.run([Feed(second), Feed(third)] if second.num_pending else [Feed(third)])
    assert texts == [(0, 1), (1, 1, 0), (1,)]
