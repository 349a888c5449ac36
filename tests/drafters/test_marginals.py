"""One law per depth of a greedy chain, for every node of that depth."""

from collections.abc import Sequence

import pytest
import torch

from tests.drafters.sessions import asked, started, toy, toy_draft
from tests.drafters.test_cascade import Listening
from tests.oracles import assert_no_slot_leaks
from tests.scripts import CPU, make_tree
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    DraftSetting,
    Feedback,
    Frontier,
    Marginals,
    PromptLookup,
    Successors,
    TokenRecycling,
)
from treespec.drafters.draft_model import DraftModelSession
from treespec.drafters.marginals import MarginalsSession
from treespec.errors import TreespecError
from treespec.sampling import Sampling
from treespec.testing import check_drafter
from treespec.testing.toys import random_model
from treespec.tree import NO_PARENT, TokenTree

V = 8
PLAIN = Sampling(1.0)
TEXT = (1, 2, 3)
MODEL = random_model(V, seed=1)


def greedy_chain(length: int) -> list[int]:
    text = TEXT
    for _ in range(length):
        text += (int(MODEL(text).argmax()),)
    return list(text[len(TEXT) :])


def bushy() -> TokenTree:
    """Three nodes at depth 1, two below each of two of them, one below one."""
    return make_tree([3, 0, 1, 2, 5, 6, 7, 4, 5], [NO_PARENT, 0, 0, 0, 1, 1, 2, 2, 4])


@pytest.mark.parametrize(
    "drafter",
    [
        Marginals(toy_draft(V)),
        Marginals(PromptLookup()),
        Marginals(TokenRecycling()),
        Marginals(Cascade((PromptLookup(), toy_draft(V)), (0.5,))),
    ],
    ids=["model", "lookup", "recycling", "cascade"],
)
def test_marginals_keep_the_contract(drafter: AbstractDrafter) -> None:
    check_drafter(drafter)


def test_every_node_has_the_law_of_its_depth_and_width_costs_nothing() -> None:
    model, tree = toy(V), bushy()
    session = started(Marginals(DraftModel(model)), TEXT)
    texts = [(*TEXT, *greedy_chain(depth)) for depth in range(4)]
    for depth, nodes in enumerate(([0], [1, 2, 3], [4, 5, 6, 7], [8])):
        draft = asked(session, tree, nodes)
        law = MODEL(texts[depth]).softmax(dim=-1)
        torch.testing.assert_close(draft.law(PLAIN, V), law.expand(len(nodes), V))
        best = draft.top(2)
        assert best.rows.tolist() == [r for r in range(len(nodes)) for _ in range(2)]
        assert best.tokens.tolist() == law.topk(2).indices.tolist() * len(nodes)
    assert [rows.tokens.shape[0] for rows in model.forwards] == [3, 1, 1, 1]


def test_a_frontier_of_several_depths_gets_the_law_of_each() -> None:
    model = toy(V)
    session = started(Marginals(DraftModel(model)), TEXT)
    depths = [0, 1, 2, 3, 1]
    frontiers = [[0], [1], [4], [8, 2]]
    laws = [MODEL((*TEXT, *greedy_chain(d))).softmax(dim=-1) for d in depths]
    found = [asked(session, bushy(), nodes).law(PLAIN, V) for nodes in frontiers]
    torch.testing.assert_close(torch.cat(found), torch.stack(laws))
    # Many expansions at one depth cost nothing more.
    asked(session, bushy(), [3, 7])
    assert session.num_forwards == 4


def test_without_a_forward_the_chain_stays_as_it_is_and_grows_on_later() -> None:
    """The lookup is not sure of what it would have put into the chain."""
    model = toy(V)
    drafter = Marginals(Cascade((PromptLookup(1, 1), DraftModel(model)), (1.0,)))
    text = (1, 3, 2, 5, 3)
    session, whole = started(drafter, text), started(drafter, text)
    assert drafter.runs_model
    assert asked(session, bushy(), [0], may_forward=False).top(1).size == 0
    assert (session.num_forwards, session.num_unread(0)) == (0, 5)
    root = asked(session, bushy(), [0])
    again = asked(session, bushy(), [0, 1, 2], may_forward=False)
    assert again.known_rows().tolist() == [0]
    assert again.law(PLAIN, V)[0].equal(root.law(PLAIN, V)[0])
    assert (session.num_forwards, session.num_unread(0)) == (1, 0)
    for nodes in ([1, 2], [4], [8]):
        expected = asked(whole, bushy(), nodes)
        draft = asked(session, bushy(), nodes)
        torch.testing.assert_close(draft.law(PLAIN, V), expected.law(PLAIN, V))


def test_a_drafter_without_a_model_is_asked_whether_or_not_a_forward_is_allowed() -> (
    None
):
    drafter = Marginals(PromptLookup(1, 1))
    session, whole = (started(drafter, (1, 3, 2, 5, 3)) for _ in range(2))
    for nodes in ([0], [1], [4]):
        draft = asked(session, bushy(), nodes, may_forward=False)
        expected = asked(whole, bushy(), nodes)
        assert draft.law(PLAIN, V).equal(expected.law(PLAIN, V))


def test_the_chains_of_all_requests_grow_in_one_forward() -> None:
    model = toy(V)
    session = started(Marginals(DraftModel(model)), TEXT)
    session.admit(7, (5, 6), 64)
    trees = {0: bushy(), 7: make_tree([6, 1, 2], [NO_PARENT, 0, 0])}
    for depth, nodes in enumerate(([0], [1, 2])):
        session.expand(
            [Frontier(k, t, torch.tensor(nodes), depth) for k, t in trees.items()]
        )
    assert [rows.tokens.shape[0] for rows in model.forwards] == [5, 2]


@pytest.mark.parametrize("agreed", range(4))
def test_the_accepted_part_of_the_chain_is_not_read_again(agreed: int) -> None:
    model = toy(V)
    session = started(Marginals(DraftModel(model)), TEXT)
    for nodes in ([0], [1], [4], [8]):
        asked(session, bushy(), nodes)
    right = greedy_chain(3)
    wrong = [(token + 1) % V for token in right]
    accepted = (*right[:agreed], *wrong[agreed:])
    session.commit(0, Feedback((1, 4, 8), (*accepted, 5)))
    assert isinstance(session, MarginalsSession)
    assert isinstance(session.session, DraftModelSession)
    sequence = session.session.sequences[0]
    assert sequence.tokens == [*TEXT, *accepted, 5]
    assert sequence.num_pending == 4 - agreed
    assert_no_slot_leaks(session.session.session, [sequence])


def test_a_chain_that_ends_leaves_deeper_nodes_without_candidates() -> None:
    session = started(Marginals(PromptLookup(1, 1)), (1, 3, 2, 5, 3))
    drafts = [asked(session, bushy(), nodes) for nodes in ([0], [1, 2], [4], [8])]
    # 3 was followed by 2, 5, 3, 2 and so on: it never ends by itself.
    assert [draft.top(1).tokens.tolist() for draft in drafts] == [[2], [5, 5], [3], [2]]
    ended = started(Marginals(PromptLookup(1, 1)), (3, 2, 3), eos_ids=(2,))
    drafts = [asked(ended, bushy(), nodes) for nodes in ([0], [1, 2], [4], [8])]
    assert [draft.known_rows().tolist() for draft in drafts] == [[0], [], [], []]
    assert [draft.top(4).size for draft in drafts] == [1, 0, 0, 0]


def test_the_drafter_is_told_of_the_part_that_it_knows() -> None:
    script: Sequence[int] = [4]
    inner = Listening(lambda ask: script, hidden_layers=(1,), num_successors=2)
    drafter = Marginals(inner)
    assert drafter.hidden_layers == (1,)
    assert drafter.num_successors == 2
    assert drafter.source_names == ("script",)
    session = started(drafter, TEXT)
    for nodes in ([0], [1], [4]):
        asked(session, bushy(), nodes)
    hidden = torch.arange(3.0).view(3, 1, 1)
    said = Successors(torch.tensor([3]), torch.zeros(1, 2), torch.zeros(1, 2), (0,))
    session.commit(0, Feedback((2, 6), (4, 5, 6), hidden, said))
    session.commit(0, Feedback((), (1,), hidden[:1], said))
    assert isinstance(session, MarginalsSession)
    first, second = session.session.told
    assert first.node_ids == (1,)
    assert first.tokens == (4, 5, 6)
    assert first.hidden.flatten().tolist() == [0, 1]
    assert first.successors is said
    assert second.node_ids == ()


def test_something_that_is_no_drafter_is_refused() -> None:
    with pytest.raises(TreespecError, match=r"drafter\.drafter must be a drafter"):
        Marginals(3)


def test_a_request_may_come_back_under_the_same_key() -> None:
    setting = DraftSetting(V, CPU, frozenset(), 64)
    session = Marginals(toy_draft(V)).start(setting)
    for text in ((1, 2, 3), (4, 5)):
        session.admit(0, text, 64)
        draft = asked(session, make_tree([text[-1]], [NO_PARENT]), [0])
        law = MODEL(text).softmax(dim=-1)
        torch.testing.assert_close(draft.law(PLAIN, V)[0], law)
        session.release(0)
