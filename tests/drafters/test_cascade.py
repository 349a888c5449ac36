"""A cascade: who leads where, who is asked, and what that costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from tests.drafters.sessions import asked, started, toy, toy_draft
from tests.scripts import Ask, ScriptedDrafter, make_tree, random_tree
from treespec.draft import DenseDraft, listed
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
)
from treespec.drafters.cascade import CascadeSession
from treespec.drafters.routed import Route, RoutedDraft
from treespec.errors import TreespecError
from treespec.sampling import Sampling
from treespec.testing import check_drafter
from treespec.tree import NO_PARENT

V = 8
PLAIN = Sampling(1.0)
TEXT = (1, 2, 0, 1, 2, 3)


def knowing(*tokens: int) -> ScriptedDrafter:
    """Proposes token 0, with probability 1/e, after these tokens and at no others."""

    def script(ask: Ask) -> Sequence[int]:
        return [0] if (*ask.text, *ask.path)[-1] in tokens else []

    return ScriptedDrafter(script)


def nobody() -> ScriptedDrafter:
    return knowing()


@pytest.mark.parametrize(
    "drafter",
    [
        Cascade((PromptLookup(), toy_draft(8)), (0.4,)),
        Cascade((toy_draft(8, 2), PromptLookup(), toy_draft(5)), (0.3, 0.5)),
        Cascade((Marginals(PromptLookup()), Marginals(toy_draft(8))), (0.5,)),
    ],
    ids=["lookup-model", "model-lookup-model", "marginals"],
)
def test_a_cascade_keeps_the_contract(drafter: AbstractDrafter) -> None:
    check_drafter(drafter)


@pytest.mark.parametrize("seed", range(12))
def test_every_row_is_what_its_leader_says_when_asked_about_everything(
    seed: int,
) -> None:
    """Whichever parents the model was not asked about: it must have read them all."""
    even = knowing(0, 2, 4, 6)
    model = toy_draft(V)
    alone = [started(even, TEXT), started(model, TEXT)]
    session = started(Cascade((even, model), (0.3,)), TEXT)
    assert isinstance(session, CascadeSession)
    tree = random_tree(TEXT[-1], 14, 5, V, seed)
    host, depths = tree.host(), tree.host().depths()
    for depth in range(6):
        nodes = [node for node in range(tree.size) if depths[node] == depth]
        said = [asked(one, tree, nodes) for one in alone]
        nodes_now = nodes[::-1]  # a policy may name them in any order
        draft = asked(session, tree, nodes_now)
        law, sources = draft.law(PLAIN, V), draft.row_sources()
        laws = [one.law(PLAIN, V) for one in said]
        for row, node in enumerate(nodes_now):
            leader = host.tokens[node] % 2
            assert sources[row] == leader
            expected = laws[leader][nodes.index(node)]
            torch.testing.assert_close(law[row], expected, check_dtype=False)
        best = draft.top(1)
        assert best.rows.tolist() == list(range(len(nodes)))
        assert best.sources.tolist() == sources.tolist()


def test_a_frontier_of_several_depths_is_led_row_by_row() -> None:
    model = toy_draft(V)
    session = started(Cascade((knowing(4), model), (0.3,)), TEXT)
    alone = started(model, TEXT)
    tree = make_tree([3, 4, 5, 6, 7], [NO_PARENT, 0, 0, 1, 3])
    for nodes in ([0], [1], [3], [4, 2]):
        draft, expected = asked(session, tree, nodes), asked(alone, tree, nodes)
        if nodes == [1]:
            assert draft.top(9).tokens.tolist() == [0]
        else:
            torch.testing.assert_close(draft.law(PLAIN, V), expected.law(PLAIN, V))


def test_a_frontier_that_the_lookup_serves_costs_no_forward() -> None:
    model = toy(V)
    session = started(Cascade((knowing(3, 4), DraftModel(model)), (0.3,)), TEXT)
    tree = make_tree([3, 4, 5], [NO_PARENT, 0, 0])
    asked(session, tree, [0])
    assert session.num_forwards == len(model.forwards) == 0
    asked(session, tree, [1, 2])
    assert session.num_forwards == len(model.forwards) == 1
    # The text was pending: it is read with the first node that is asked about.
    assert model.forwards[0].tokens.tolist() == [*TEXT, 5]


def test_the_models_that_are_asked_read_all_requests_in_one_forward() -> None:
    model = toy(V)
    session = started(Cascade((knowing(4), DraftModel(model)), (0.3,)), TEXT)
    session.admit(7, (5, 6), 64)
    session.admit(8, (4,), 64)
    trees = {
        key: make_tree([last, 4, 5, 6], [NO_PARENT, 0, 1, 1])
        for key, last in ((0, 3), (7, 6), (8, 4))
    }
    for depth, nodes in enumerate(([0], [1], [2, 3])):
        session.expand(
            [Frontier(key, t, torch.tensor(nodes), depth) for key, t in trees.items()]
        )
    # Roots of two requests; nobody's node 1; then the leaves, and before them node 1.
    assert session.num_forwards == 2
    assert model.forwards[1].tokens.tolist() == [4, 5, 6, 4, 5, 6, 4, 4, 5, 6]


def test_a_candidate_exactly_as_likely_as_the_threshold_leads() -> None:
    for least, source in ((0.5, 0), (0.51, 1), (0.0, 0), (1.0, 1)):
        half = PromptLookup(2, 2, 1)  # what was seen once has half the probability
        drafter = Cascade((half, toy_draft(V)), (least,))
        draft = asked(started(drafter, (1, 2, 0, 1, 2)), make_tree([2], [-1]), [0])
        assert draft.row_sources().tolist() == [source]


def test_the_last_one_takes_what_is_left_and_may_know_nothing() -> None:
    session = started(Cascade((knowing(4), nobody()), (0.3,)), TEXT)
    tree = make_tree([3, 4, 5], [NO_PARENT, 0, 0])
    draft = asked(session, tree, [1, 2])
    assert draft.known_rows().tolist() == [0]
    assert draft.top(3).rows.tolist() == [0]
    assert draft.row_sources().tolist() == [0, 0]
    assert draft.law(PLAIN, V).sum(dim=-1).tolist() == [1, 0]


def test_without_a_forward_the_last_that_needs_none_leads_where_nobody_is_sure() -> (
    None
):
    """Its candidates have the probability 1/e: too little, had the model a say."""
    model, lookups = toy(V), (knowing(4), knowing(3, 4, 5))
    drafter = Cascade((lookups[0], DraftModel(model), lookups[1]), (0.3, 0.9))
    session = started(drafter, TEXT)
    tree = make_tree([3, 4, 5, 6], [NO_PARENT, 0, 0, 0])
    draft = asked(session, tree, [0], may_forward=False)
    assert draft.row_sources().tolist() == [2]
    draft = asked(session, tree, [1, 2, 3], may_forward=False)
    assert draft.row_sources().tolist() == [0, 2, 0]
    assert draft.known_rows().tolist() == [0, 1]
    unsure = Cascade((knowing(3), DraftModel(model)), (0.9,))
    draft = asked(started(unsure, TEXT), tree, [0], may_forward=False)
    assert draft.top(1).tokens.tolist() == [0]
    assert len(model.forwards) == 0


def test_without_a_forward_models_alone_know_nothing() -> None:
    session = started(Cascade((toy_draft(V), toy_draft(V, 2)), (0.5,)), TEXT)
    tree = make_tree([3, 4, 5], [NO_PARENT, 0, 0])
    for nodes in ([0], [1, 2]):
        draft = asked(session, tree, nodes, may_forward=False)
        assert draft.known_rows().tolist() == []
        assert draft.law(PLAIN, V).tolist() == [[0.0] * V] * len(nodes)
    assert (session.num_forwards, session.num_unread(0)) == (0, len(TEXT))


def test_a_model_reads_later_what_it_was_not_allowed_to_read() -> None:
    model = toy(V)
    session = started(Cascade((knowing(4), DraftModel(model)), (0.3,)), TEXT)
    alone = started(DraftModel(toy(V)), TEXT)
    tree = make_tree([3, 5, 6, 7], [NO_PARENT, 0, 1, 2])
    for nodes in ([0], [1]):
        asked(session, tree, nodes, may_forward=False)
    for nodes in ([0], [1]):
        asked(alone, tree, nodes)
    for nodes in ([2], [3]):
        draft, expected = asked(session, tree, nodes), asked(alone, tree, nodes)
        torch.testing.assert_close(draft.law(PLAIN, V), expected.law(PLAIN, V))
    read = [rows.tokens.tolist() for rows in model.forwards]
    assert read == [[*TEXT, 5, 6], [7]]


def test_requests_that_may_forward_and_that_may_not_share_a_call() -> None:
    model = toy(V)
    session = started(Cascade((knowing(4), DraftModel(model)), (0.3,)), TEXT)
    session.admit(7, (5, 6), 64)
    tree = make_tree([3], [NO_PARENT])
    drafts = session.expand(
        [
            Frontier(key, tree, torch.tensor([0]), 0, may_forward=may)
            for key, may in ((0, False), (7, True))
        ]
    )
    assert [draft.known_rows().tolist() for draft in drafts] == [[], [0]]
    assert [rows.tokens.tolist() for rows in model.forwards] == [[5, 6]]


def test_accepted_nodes_that_the_model_has_read_are_not_read_again() -> None:
    model = toy(V)
    session = started(Cascade((knowing(4), DraftModel(model)), (0.3,)), TEXT)
    tree = make_tree([3, 5, 4, 6, 7], [NO_PARENT, 0, 1, 2, 3])
    for node in range(4):
        asked(session, tree, [node])
    session.commit(0, Feedback((1, 2, 3, 4), (5, 4, 6, 7, 1)))
    asked(session, make_tree([1], [NO_PARENT]), [0])
    # Node 2 was led by the other one, but read on the way to node 3; 4 was a leaf.
    read = [rows.tokens.tolist() for rows in model.forwards]
    assert read == [[*TEXT], [5], [4, 6], [7, 1]]


# What the members are told


@dataclass(frozen=True)
class Listening(ScriptedDrafter):
    """Asks for more than candidates, and keeps what it is told."""

    num_successors: int = 0

    def start(self, setting: DraftSetting):
        session = super().start(setting)
        session.told = []
        session.commit = lambda request, feedback: session.told.append(feedback)
        return session


def test_every_member_gets_what_it_asked_for_and_no_more() -> None:
    script = nobody().script
    first = Listening(script, hidden_layers=(4, 1), num_successors=2)
    second = Listening(script, hidden_layers=(1, 2), num_successors=3)
    third = Listening(script)
    team = Cascade((first, second, third), (0.5, 0.5))
    assert team.hidden_layers == (1, 2, 4)
    assert team.num_successors == 3
    session = started(team, TEXT)
    assert isinstance(session, CascadeSession)
    hidden = torch.tensor([[[1.0], [2.0], [4.0]]] * 2)
    tokens = torch.tensor([[5, 6, 7]] * 2)
    successors = Successors(torch.tensor([3, 4]), tokens, -tokens.float(), (0, 1))
    session.commit(0, Feedback((1,), (4, 5), hidden, successors))
    (one,), (two,), (three,) = (member.session.told for member in session.members)
    assert one.hidden[0, :, 0].tolist() == [4, 1]
    assert two.hidden[0, :, 0].tolist() == [1, 2]
    assert one.successors.tokens.tolist() == [[5, 6]] * 2
    assert one.successors.logprobs.tolist() == [[-5, -6]] * 2
    assert two.successors.tokens.tolist() == tokens.tolist()
    assert three == Feedback((1,), (4, 5))
    assert one.node_ids == two.node_ids == (1,)


def test_sources_keep_their_names_and_equal_ones_get_numbers() -> None:
    pair = Cascade((PromptLookup(), toy_draft(8)), (0.5,))
    assert pair.source_names == ("prompt_lookup", "draft_model")
    nested = Cascade((pair, pair, knowing(1)), (0.5, 0.5))
    assert nested.source_names == (
        "prompt_lookup",
        "draft_model",
        "prompt_lookup_2",
        "draft_model_2",
        "script",
    )
    draft = asked(
        started(Cascade((nobody(), pair), (0.5,)), TEXT), make_tree([3], [-1]), [0]
    )
    assert draft.row_sources().tolist() == [2]
    assert set(draft.top(2).sources.tolist()) == {2}
    third = Cascade((pair, knowing(3)), (1.0,))
    draft = asked(started(third, TEXT), make_tree([3], [-1]), [0])
    assert draft.row_sources().tolist() == [2]


@pytest.mark.parametrize(
    ("drafters", "least", "says"),
    [
        ([], [], r"drafter\.drafters must be a list of at least one drafter, got \[\]"),
        ([3], [], r"drafter\.drafters\[0\] must be a drafter, got 3"),
        ([nobody()] * 2, [], r"one for every drafter but the last \(1 in all\), got"),
        ([nobody()] * 2, 0.5, r"drafter\.min_confidence must be a list of numbers"),
        ([nobody()] * 2, ["x"], r"drafter\.min_confidence must be a list of numbers"),
        ([nobody()] * 2, [1.5], r"must hold probabilities from 0 to 1, got \[1\.5\]"),
    ],
)
def test_what_is_no_cascade_is_refused(drafters, least, says: str) -> None:
    with pytest.raises(TreespecError, match=says):
        Cascade(drafters, least)


def test_a_cascade_is_cold_when_its_drafters_are() -> None:
    @dataclass(frozen=True)
    class Remembers(ScriptedDrafter):
        memory: bool = True

        def cold(self):
            return replace(self, memory=False)

    cold = Cascade((Remembers(nobody().script), toy_draft(8)), (0.5,)).cold()
    assert not cold.drafters[0].memory
    assert isinstance(cold.drafters[1], DraftModel)


@pytest.mark.parametrize(("more", "leads"), [(0, 1), (1e-6, 0)])
def test_a_drafter_that_is_just_sure_enough_leads(more: float, leads: int) -> None:
    cascade = Cascade((knowing(3), nobody()), (math.exp(-1) + more,))
    draft = asked(started(cascade, TEXT), make_tree([3], [NO_PARENT]), [0])
    assert draft.top(1).size == leads


def test_one_drafter_that_leads_everywhere_is_heard_as_it_speaks() -> None:
    """Short cut and long way agree, for dense and sparse answers and all questions."""
    rows = torch.arange(3)
    dense = DenseDraft(
        torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    )
    sparse = listed([[(2, -0.1), (1, -2.0)], [], [(0, -0.3)]], rows.device, source=1)
    for draft in (dense, sparse):
        short, long = (
            RoutedDraft((Route(draft, rows, rows, 4, is_whole),), 3)
            for is_whole in (True, False)
        )
        for k in (1, 2, 3):
            found, expected = (d.top(k) for d in (short, long))
            for name in ("rows", "tokens", "logprobs", "sources"):
                assert torch.equal(getattr(found, name), getattr(expected, name))
