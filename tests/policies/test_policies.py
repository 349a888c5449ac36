"""What shape a tree gets, from what the drafter said and what may be spent."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripts import make_tree
from treespec.chance import GeneratorChance
from treespec.draft import AbstractDraft, Children, DenseDraft, SparseDraft
from treespec.errors import TreespecError
from treespec.policies import (
    AbstractDraftPolicy,
    Chain,
    ConfidenceTree,
    Growth,
    SampledChain,
    Situation,
    TopKTree,
)
from treespec.sampling import Sampling
from treespec.testing.toys import random_model
from treespec.tree import NO_PARENT, ROOT, TokenTree
from treespec.types import Budget, ProposalKind

VOCAB_SIZE = 5
POLICIES = (
    Chain(),
    SampledChain(),
    TopKTree(1),
    TopKTree(2),
    TopKTree(4),
    ConfidenceTree(),
)
repeatable = settings(derandomize=True, deadline=None, max_examples=60)


def growth(
    tree: TokenTree,
    frontier: list[int],
    draft: AbstractDraft,
    budget: Budget,
    seed: int = 0,
) -> Growth:
    return Growth(
        tree=tree,
        frontier=torch.tensor(frontier),
        draft=draft,
        budget=budget,
        depth=1,
        committed=[1, 2],
        sampling=Sampling(temperature=1.0),
        vocab_size=VOCAB_SIZE,
        chance=GeneratorChance(torch.Generator().manual_seed(seed)),
        situation=Situation(None, length=2, remaining=64),
        num_forwards=1,
    )


def dense(*rows: list[float]) -> DenseDraft:
    return DenseDraft(torch.tensor(rows).log())


def nothing(num_rows: int) -> SparseDraft:
    none = torch.zeros(0, dtype=torch.int64)
    return SparseDraft(Children(none, none, none.float(), none), num_rows)


LAWS = ([0.5, 0.1, 0.3, 0.06, 0.04], [0.1, 0.05, 0.05, 0.2, 0.6])
TWO = make_tree([2, 0, 3], [NO_PARENT, 0, 0])


def test_a_chain_takes_the_likeliest_token() -> None:
    root = make_tree([2], [NO_PARENT])
    layer = Chain().grow(growth(root, [0], dense(LAWS[0]), Budget(4, 1, 9)))
    assert layer is not None
    assert layer.tokens.tolist() == [0]
    assert layer.parents.tolist() == [ROOT]
    assert layer.draft_logprobs.exp().tolist() == pytest.approx([0.5])
    assert layer.draft_probs is None


def test_a_sampled_chain_keeps_the_law_that_it_drew_from() -> None:
    root = make_tree([2], [NO_PARENT])
    drawn = []
    for seed in range(400):
        layer = SampledChain().grow(
            growth(root, [0], dense(LAWS[0]), Budget(4, 1, 9), seed)
        )
        assert layer is not None
        assert layer.draft_probs is not None
        assert layer.draft_probs[0].tolist() == pytest.approx(LAWS[0])
        token = int(layer.tokens)
        assert float(layer.draft_logprobs.exp()) == pytest.approx(LAWS[0][token])
        drawn.append(token)
    for token, probability in enumerate(LAWS[0]):
        assert drawn.count(token) / 400 == pytest.approx(probability, abs=0.08)


def test_a_top_k_tree_keeps_the_likeliest_paths_of_a_layer() -> None:
    """0.5 * 0.7 beats 0.3 * 0.6, although 0.6 is the second best child."""
    tree = make_tree([2, 0, 3], [NO_PARENT, 0, 0])
    tree = TokenTree(
        tree.tokens,
        tree.parents,
        torch.tensor([0.0, 0.5, 0.3]).log().nan_to_num(neginf=0.0),
        tree.sources,
        tree.proposal,
        None,
        tree.draft_rows,
    )
    draft = dense([0.1, 0.2, 0.7, 0.0, 0.0], [0.3, 0.05, 0.0, 0.05, 0.6])
    budget = Budget(4, max_width=3, max_nodes=9)
    layer = TopKTree(2).grow(growth(tree, [1, 2], draft, budget))
    assert layer is not None
    # Paths: 0.35, 0.10 below node 1; 0.18, 0.09 below node 2.
    assert layer.parents.tolist() == [1, 1, 2]
    assert layer.tokens.tolist() == [2, 1, 4]
    narrow = TopKTree(2).grow(growth(tree, [1, 2], draft, Budget(4, 2, 9)))
    assert narrow is not None
    assert list(zip(narrow.parents.tolist(), narrow.tokens.tolist(), strict=True)) == [
        (1, 2),
        (2, 4),
    ]


def test_siblings_stand_in_the_order_of_their_likelihood() -> None:
    layer = TopKTree(4).grow(growth(TWO, [1, 2], dense(*LAWS), Budget(4, 6, 9)))
    assert layer is not None
    pairs = list(
        zip(layer.parents.tolist(), layer.draft_logprobs.tolist(), strict=True)
    )
    for parent in (1, 2):
        logprobs = [logprob for above, logprob in pairs if above == parent]
        assert logprobs == sorted(logprobs, reverse=True)


@repeatable
@given(
    st.sampled_from(POLICIES),
    st.integers(1, 6),
    st.integers(3, 9),
    st.integers(0, 99),
)
def test_no_layer_is_larger_than_the_room(
    policy: AbstractDraftPolicy, max_width: int, max_nodes: int, seed: int
) -> None:
    rows = [random_model(VOCAB_SIZE, seed)((row,)).float() for row in range(2)]
    frontier = [2] if policy.max_children == 1 else [1, 2]
    draft = DenseDraft(torch.stack(rows[: len(frontier)]))
    state = growth(TWO, frontier, draft, Budget(4, max_width, max_nodes), seed)
    layer = policy.grow(state)
    assert layer is not None
    assert 1 <= layer.size <= state.room == min(max_width, max_nodes - 2)
    assert set(layer.parents.tolist()) <= set(frontier)
    children = [layer.parents.tolist().count(node) for node in frontier]
    assert policy.max_children is not None
    assert max(children) <= policy.max_children
    assert (layer.draft_probs is not None) == (
        policy.proposal is not ProposalKind.DETERMINISTIC
    )


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_without_candidates_a_tree_stops_growing(policy: AbstractDraftPolicy) -> None:
    assert policy.grow(growth(TWO, [1], nothing(1), Budget(4, 4, 9))) is None


@pytest.mark.parametrize("top_k", [0, -1, 1.5])
def test_an_impossible_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(TreespecError, match=r"policy\.top_k must be an integer >= 1"):
        TopKTree(top_k)


@pytest.mark.parametrize("chain", [Chain, SampledChain])
def test_a_chain_stops_behind_the_token_that_made_it_unlikely(
    chain: type[Chain] | type[SampledChain],
) -> None:
    """The token is kept: to drop a drawn one for its own probability would bias."""
    tree = make_tree([2, 0], [NO_PARENT, 0])  # a path of e^-1, about 0.368
    certain = dense([0.0, 0.0, 1.0, 0.0, 0.0])
    for min_confidence, goes_on in ((0.0, True), (0.3, True), (0.4, False)):
        layer = chain(min_confidence).grow(growth(tree, [1], certain, Budget(4, 1, 9)))
        assert layer is not None
        assert layer.tokens.tolist() == [2]
        new = tree.size
        expand = [new] if layer.expand is None else layer.expand.tolist()
        assert expand == ([new] if goes_on else [])


@pytest.mark.parametrize("chain", [Chain, SampledChain])
@pytest.mark.parametrize("min_confidence", [-0.1, 1.1, float("nan")])
def test_an_impossible_confidence_is_refused(
    chain: type[Chain] | type[SampledChain], min_confidence: float
) -> None:
    with pytest.raises(TreespecError, match=r"policy\.min_confidence must be in"):
        chain(min_confidence)
