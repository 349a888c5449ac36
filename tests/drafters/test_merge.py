"""Candidates of several drafters in one tree: their probabilities and sources."""

import math
from collections.abc import Mapping

import pytest
import torch

from tests.drafters.sessions import asked, started, toy, toy_draft
from tests.scripts import CPU, make_tree
from treespec.draft import Children, DenseDraft, SparseDraft
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    Merge,
    PromptLookup,
)
from treespec.drafters.merge import MergedDraft
from treespec.drafters.routed import Route, RoutedDraft
from treespec.errors import TreespecError
from treespec.sampling import Sampling
from treespec.testing import check_drafter
from treespec.tree import NO_PARENT

PLAIN = Sampling(1.0)


@pytest.mark.parametrize(
    "drafter",
    [
        Merge((toy_draft(5), PromptLookup(2, 1, 2)), (1, 2)),
        Merge((PromptLookup(), Cascade((PromptLookup(), toy_draft(8)), (0.5,)))),
    ],
    ids=["model-lookup", "cascade-in-merge"],
)
def test_a_mixture_keeps_the_contract(drafter: AbstractDrafter) -> None:
    check_drafter(drafter)


def test_a_member_that_runs_a_model_is_not_asked_where_it_must_not_and_catches_up() -> (
    None
):
    text, tree = (1, 2, 0, 1, 2), make_tree([2, 0, 3, 1, 4], [NO_PARENT, 0, 0, 1, 2])
    model, lookup = toy(8), PromptLookup(2, 1)
    session = started(Merge((lookup, DraftModel(model)), (1, 3)), text)
    whole = started(Merge((lookup, DraftModel(toy(8))), (1, 3)), text)
    alone = started(lookup, text)
    for nodes in ([0], [1]):
        asked(whole, tree, nodes)
        expected = asked(alone, tree, nodes)
        draft = asked(session, tree, nodes, may_forward=False)
        assert listed(draft.top(8)) == listed(expected.top(8))
        assert draft.row_sources().tolist() == [0]
    assert len(model.forwards) == 0
    for nodes in ([2, 3], [4]):
        draft, expected = asked(session, tree, nodes), asked(whole, tree, nodes)
        torch.testing.assert_close(draft.law(PLAIN, 8), expected.law(PLAIN, 8))
        assert torch.equal(draft.row_sources(), expected.row_sources())
    # Node 1 had been passed over; 2 and 3 are what was asked about.
    assert [rows.tokens.tolist() for rows in model.forwards] == [[*text, 0, 3, 1], [4]]


def test_without_a_forward_a_mixture_of_models_knows_nothing() -> None:
    session = started(Merge((toy_draft(8), toy_draft(8, 2))), (1, 2))
    draft = asked(session, make_tree([2], [NO_PARENT]), [0], may_forward=False)
    assert (draft.known_rows().tolist(), draft.top(3).size) == ([], 0)
    assert (session.num_forwards, session.num_unread(0)) == (0, 2)


def sparse(*rows: Mapping[int, float], source: int = 0) -> SparseDraft:
    """A draft that gives some tokens of each row a probability, best first."""
    flat = [(r, t, math.log(p)) for r, row in enumerate(rows) for t, p in row.items()]
    rows_, tokens, logprobs = zip(*flat, strict=True)
    children = Children(
        torch.tensor(rows_),
        torch.tensor(tokens),
        torch.tensor(logprobs),
        torch.full((len(flat),), source),
    )
    return SparseDraft(children, len(rows))


def dense(*rows: list[float]) -> DenseDraft:
    return DenseDraft(torch.tensor(rows).log())


def merged(*drafts: DenseDraft | SparseDraft, weights=(3.0, 1.0)) -> MergedDraft:
    return MergedDraft(drafts, weights, (0, 2), 4)


def listed(children: Children) -> list[tuple[int, int, float, int]]:
    columns = (children.rows, children.tokens, children.logprobs.exp())
    rows, tokens, probs = (column.tolist() for column in columns)
    sources = children.sources.tolist()
    return [
        (row, token, pytest.approx(prob), source)
        for row, token, prob, source in zip(rows, tokens, probs, sources, strict=True)
    ]


def test_the_same_token_from_two_drafters_is_one_candidate_from_who_gives_more() -> (
    None
):
    """Weights 3 and 1: shares .75 and .25. Public case 19: no duplicate siblings."""
    model = dense([0.1, 0.2, 0.3, 0.4])
    draft = merged(model, sparse({2: 0.8, 1: 0.2}))
    assert listed(draft.top(4)) == [
        (0, 2, 0.75 * 0.3 + 0.25 * 0.8, 0),
        (0, 3, 0.75 * 0.4, 0),
        (0, 1, 0.75 * 0.2 + 0.25 * 0.2, 0),
        (0, 0, 0.75 * 0.1, 0),
    ]
    draft = merged(sparse({1: 0.5}, source=1), model, weights=(1.0, 3.0))
    # 1 gets .125 from the first and .15 from the second.
    assert listed(draft.top(1)) == [(0, 3, 0.3, 2)]
    assert [source for *_, source in listed(draft.top(4))] == [2] * 4
    draft = merged(sparse({1: 0.9}, source=1), model, weights=(1.0, 3.0))
    assert listed(draft.top(1)) == [(0, 1, 0.25 * 0.9 + 0.75 * 0.2, 1)]
    assert draft.row_sources().tolist() == [1]


def test_candidates_that_are_named_are_merged_as_whole_laws_would_be() -> None:
    """Drafters that name a few tokens are merged without a law of the vocabulary."""
    parts = sparse({2: 0.5, 1: 0.3}, {}, {0: 0.9}), sparse({1: 0.4, 3: 0.1}, {3: 1.0})
    parts = parts[0], SparseDraft(parts[1].candidates, 3)
    named = merged(*parts)
    whole = merged(*(RoutedDraft((everything(part),), 3) for part in parts))
    for k in (1, 2, 4):
        assert listed(named.top(k)) == listed(whole.top(k))
    assert listed(named.top(4)) == [
        (0, 2, 0.75 * 0.5, 0),
        (0, 1, 0.75 * 0.3 + 0.25 * 0.4, 0),
        (0, 3, 0.25 * 0.1, 2),
        (1, 3, 1.0, 2),
        (2, 0, 0.9, 0),
    ]


def everything(draft: SparseDraft) -> Route:
    rows = torch.arange(draft.num_rows)
    return Route(draft, rows, rows)


def test_where_one_knows_nothing_the_other_has_all_the_weight() -> None:
    draft = merged(sparse({1: 0.5}, {3: 0.5, 0: 0.25}), sparse({}, {0: 1.0}))
    assert listed(draft.top(1)) == [(0, 1, 0.5, 0), (1, 0, 0.25 * 0.75 + 0.25, 2)]
    draft = merged(sparse({}, {1: 0.5}, {}), sparse({}, {}, {2: 0.5}))
    assert draft.known_rows().tolist() == [1, 2]
    assert draft.row_sources().tolist() == [0, 0, 2]
    assert listed(draft.top(4)) == [(1, 1, 0.5, 0), (2, 2, 0.5, 2)]
    assert draft.law(PLAIN, 4).sum(dim=-1).tolist() == [0, 1, 1]


@pytest.mark.parametrize("sampling", [PLAIN, Sampling(0.5, top_k=2), Sampling()])
def test_the_law_is_the_mixture_of_the_laws(sampling: Sampling) -> None:
    parts = dense([0.1, 0.2, 0.3, 0.4]), sparse({2: 0.8, 1: 0.1})
    one, other = (part.law(sampling, 4) for part in parts)
    law = merged(*parts).law(sampling, 4)
    torch.testing.assert_close(law, 0.75 * one + 0.25 * other)
    assert law.device == CPU


def test_probabilities_of_a_draft_are_those_of_its_candidates() -> None:
    draft = sparse({2: 0.5, 0: 0.25}, {}, {1: 1.0})
    expected = torch.tensor([[0.25, 0, 0.5, 0], [0, 0, 0, 0], [0, 1, 0, 0]])
    torch.testing.assert_close(draft.probs(4), expected)
    row = [0.1, 0.2, 0.3, 0.4]
    torch.testing.assert_close(dense(row).probs(4), torch.tensor([row]))


def test_every_drafter_is_asked_about_every_node() -> None:
    first, second = toy_draft(8, 1), toy_draft(8, 2)
    session = started(Merge((first, second)), (1, 2, 3))
    tree = make_tree([3, 4, 5], [NO_PARENT, 0, 0])
    alone = [started(drafter, (1, 2, 3)) for drafter in (first, second)]
    for nodes in ([0], [1, 2]):
        laws = [asked(one, tree, nodes).law(PLAIN, 8) for one in alone]
        mixed = asked(session, tree, nodes).law(PLAIN, 8)
        torch.testing.assert_close(mixed, (laws[0] + laws[1]) / 2)
    assert session.num_forwards == 4


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        ([1], r"drafter\.weights must be a list of numbers, one for every drafter"),
        ([1, 0], r"drafter\.weights must hold finite numbers above 0, got \[1, 0\]"),
        ([1, math.inf], "finite numbers above 0"),
        ([1, math.nan], "finite numbers above 0"),
    ],
)
def test_impossible_weights_are_refused(weights, says: str) -> None:
    with pytest.raises(TreespecError, match=says):
        Merge([PromptLookup(), toy_draft(8)], weights)
