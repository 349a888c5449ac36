"""A draft model reads a frontier of all requests in one forward of its own slots."""

from typing import Any

import pytest
import torch

from tests.oracles import assert_no_slot_leaks
from tests.scripts import Text, greedy_table, make_tree, mixing
from treespec.drafters import DraftModel, DraftSetting, Feedback, Frontier
from treespec.drafters.draft_model import DraftModelSession
from treespec.errors import TreespecError
from treespec.models.table import TableModel
from treespec.sampling import Sampling
from treespec.tree import NO_PARENT, TokenTree


def ramp(vocab_size: int) -> TableModel:
    """The later the token, the likelier; the text's sum shifts all logits."""
    return TableModel(
        lambda text: [float(i + sum(text)) for i in range(vocab_size)], vocab_size
    )


def session_of(model: TableModel, vocab_size: int = 9) -> DraftModelSession:
    setting = DraftSetting(vocab_size, torch.device("cpu"), frozenset(), 64)
    return DraftModel(model).start(setting)


def frontier(request: int, tree: TokenTree, *nodes: int) -> Frontier:
    depth = len(tree.host().path(nodes[0]))
    return Frontier(request, tree, torch.tensor(nodes), depth)


def test_all_requests_and_nodes_go_into_one_forward() -> None:
    next_token, model = mixing(9), greedy_table(mixing(9), 9)
    session = session_of(model)
    prompts: dict[int, Text] = {4: (1, 2, 3), 7: (5,)}
    for key, prompt in prompts.items():
        session.admit(key, prompt, 32)
    trees = {
        key: make_tree([text[-1], 6, 7], [NO_PARENT, 0, 0])
        for key, text in prompts.items()
    }
    roots = session.expand([frontier(key, tree, 0) for key, tree in trees.items()])
    leaves = session.expand([frontier(key, tree, 1, 2) for key, tree in trees.items()])
    assert session.num_forwards == len(model.forwards) == 2
    for (_, prompt), root, below in zip(prompts.items(), roots, leaves, strict=True):
        assert root.top(1).tokens.tolist() == [next_token(prompt)]
        assert below.top(1).tokens.tolist() == [
            next_token((*prompt, 6)),
            next_token((*prompt, 7)),
        ]


def test_accepted_nodes_keep_their_slots_and_the_rest_is_read_again() -> None:
    model = greedy_table(mixing(9), 9)
    session = session_of(model)
    session.admit(0, (1, 2, 3), 32)
    tree = make_tree([3, 6, 7, 8, 4], [NO_PARENT, 0, 0, 2, 3])
    session.expand([frontier(0, tree, 0)])
    session.expand([frontier(0, tree, 1, 2)])
    session.expand([frontier(0, tree, 3)])
    session.commit(0, Feedback((2, 3, 4), (7, 8, 4, 5)))
    sequence = session.sequences[0]
    assert sequence.tokens == [1, 2, 3, 7, 8, 4, 5]
    assert sequence.num_pending == 2, "the last layer was never read, nor the bonus"
    assert_no_slot_leaks(session.session, [sequence])
    (draft,) = session.expand([frontier(0, make_tree([5], [NO_PARENT]), 0)])
    assert model.forwards[-1].tokens.tolist() == [4, 5]
    expected = mixing(9)((1, 2, 3, 7, 8, 4, 5))
    assert draft.top(1).tokens.tolist() == [expected]
    session.release(0)
    assert session.session.cache.num_live == 0


def test_tokens_that_only_the_draft_has_are_cut_off() -> None:
    """Public case 30: a draft never proposes an id that the target does not have."""
    session = session_of(ramp(12), vocab_size=9)
    session.admit(0, (1,), 32)
    (draft,) = session.expand([frontier(0, make_tree([1], [NO_PARENT]), 0)])
    assert draft.top(3).tokens.tolist() == [8, 7, 6]


def test_tokens_that_only_the_target_has_are_never_likely() -> None:
    session = session_of(ramp(6), vocab_size=9)
    session.admit(0, (1,), 32)
    (draft,) = session.expand([frontier(0, make_tree([1], [NO_PARENT]), 0)])
    top = draft.top(9)
    assert top.tokens[:6].tolist() == [5, 4, 3, 2, 1, 0]
    assert top.logprobs[6:].tolist() == [-torch.inf] * 3


def test_a_token_that_the_draft_cannot_read_is_read_as_its_last() -> None:
    """Its embedding has no such row: an index error, in the middle of a text."""
    model = greedy_table(mixing(6), 6)
    session = session_of(model, vocab_size=9)
    session.admit(0, (1, 8), 32)
    tree = make_tree([8, 7, 2], [NO_PARENT, 0, 0])
    session.expand([frontier(0, tree, 0)])
    session.expand([frontier(0, tree, 1, 2)])
    session.commit(0, Feedback((1,), (7, 8)))
    session.expand([frontier(0, make_tree([8], [NO_PARENT]), 0)])
    read = [rows.tokens.tolist() for rows in model.forwards]
    assert read == [[1, 5], [5, 2], [5]]


def test_a_request_beyond_the_context_gets_nothing_and_others_do() -> None:
    model = TableModel(lambda text: [0.0, 1.0], 2, max_positions=4)
    session = session_of(model, vocab_size=2)
    session.admit(0, (1, 1, 1, 1), 16)
    session.admit(1, (1,), 16)
    trees = [make_tree([1, 1], [NO_PARENT, 0]) for _ in range(2)]
    at_root = session.expand([frontier(key, trees[key], 0) for key in (0, 1)])
    assert [draft.top(1).size for draft in at_root] == [1, 1]
    below = session.expand([frontier(key, trees[key], 1) for key in (0, 1)])
    assert [draft.top(1).size for draft in below] == [0, 1]


def test_its_own_temperature_is_what_its_children_are_drawn_at() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0]], dtype=torch.float64)
    model = TableModel(lambda text: logits[0].tolist(), 3)
    root = make_tree([1], [NO_PARENT])
    for temperature, expected in ((None, 0.5), (0.0, 0.0), (2.0, 2.0)):
        setting = DraftSetting(3, torch.device("cpu"), frozenset(), 64)
        session = DraftModel(model, temperature).start(setting)
        session.admit(0, (1,), 32)
        (draft,) = session.expand([frontier(0, root, 0)])
        law = draft.law(Sampling(temperature=0.5), 3)
        assert law.equal(Sampling(temperature=expected).probs(logits))


@pytest.mark.parametrize("temperature", [-0.1, float("nan"), float("inf"), True, "1"])
def test_a_temperature_that_is_none_is_refused(temperature: Any) -> None:
    with pytest.raises(TreespecError, match=r"^drafter\.temperature must") as caught:
        DraftModel(ramp(3), temperature)
    assert f"got {temperature!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["source_names", "hidden_layers"])
def test_it_has_one_source_and_wants_no_hidden_states(name: str) -> None:
    expected = {"source_names": ("draft_model",), "hidden_layers": ()}
    assert getattr(DraftModel(ramp(3)), name) == expected[name]
