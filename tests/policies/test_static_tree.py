"""A fixed shape, filled with whatever the draft says."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies.test_policies import TWO
from tests.policies.test_policies import growth as any_growth
from treespec.chance import GeneratorChance
from treespec.draft import Children, SparseDraft
from treespec.errors import TreespecError
from treespec.policies import StaticTree, given_tree
from treespec.policies.shape import TreeShape, comb_shape, cut, widths_shape
from treespec.sampling import Sampling
from treespec.testing.policy_cases import PolicyCase
from treespec.testing.toys import constant_model, random_model
from treespec.tree import TokenTree, sibling_ranks
from treespec.types import Budget, ProposalKind

VOCAB_SIZE = 6
WIDE = Budget(9, 99, 99)
UNEVEN = TreeShape(((0,), (1,), (0, 0), (1, 0), (2,), (0, 1), (0, 0, 0), (1, 1)))
SECOND_GOES_ON = TreeShape(
    ((0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1), (1, 0, 0, 0))
)
SHAPES = (UNEVEN, SECOND_GOES_ON, widths_shape([2, 1, 2]), comb_shape(3, 3))
DRAWN = (ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT)
KINDS = (ProposalKind.DETERMINISTIC, *DRAWN)
repeatable = settings(derandomize=True, deadline=None, max_examples=40)


def case(budget: Budget, known=None, draft=None) -> PolicyCase:
    model = draft or random_model(VOCAB_SIZE, seed=3)
    return PolicyCase(model, VOCAB_SIZE, budget, Sampling(1.0), known)


def grown(policy: StaticTree, case: PolicyCase, seed: int = 0) -> TokenTree:
    chance = GeneratorChance(torch.Generator().manual_seed(seed))
    return case.tree(policy, chance)


def rank_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    host = tree.host()
    ranks = host.ranks()
    return [
        tuple(ranks[node] for node in host.path(node)) for node in range(1, tree.size)
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "kind", [ProposalKind.DETERMINISTIC, ProposalKind.WITHOUT_REPLACEMENT]
)
def test_the_tree_has_the_shape(shape: TreeShape, kind: ProposalKind) -> None:
    tree = grown(StaticTree(shape, kind), case(WIDE))
    assert sorted(rank_paths(tree)) == sorted(shape.paths)


@repeatable
@given(
    st.sampled_from(SHAPES),
    st.sampled_from([ProposalKind.DETERMINISTIC, ProposalKind.WITHOUT_REPLACEMENT]),
    st.builds(Budget, st.integers(1, 4), st.integers(1, 6), st.integers(1, 9)),
    st.integers(0, 20),
)
def test_a_budget_cuts_the_shape_whatever_is_drawn(
    shape: TreeShape, kind: ProposalKind, budget: Budget, seed: int
) -> None:
    tree = grown(StaticTree(shape, kind), case(budget), seed)
    assert sorted(rank_paths(tree)) == sorted(cut(shape, budget))


def test_ranks_are_the_order_of_likelihood_of_a_deterministic_tree() -> None:
    model = constant_model(0.1, 0.5, 0.2, 0.15, 0.05, 0.0)
    tree = grown(given_tree([3]), case(WIDE, draft=model))
    assert tree.tokens.tolist()[1:] == [1, 2, 3]
    assert tree.draft_probs is None


def knows_some(text: tuple[int, ...]) -> bool:
    return sum(text) % 3 != 2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_where_the_draft_knows_less_the_tree_is_a_part_of_the_shape(
    shape: TreeShape, kind: ProposalKind
) -> None:
    """Every node must still get as many children as its own place in the shape says.

    Once a node is missing, the place of the others no longer follows from their number.
    """
    seen = Counter[int]()
    for seed in range(30):
        model = random_model(VOCAB_SIZE, seed)
        tree = grown(StaticTree(shape, kind), case(WIDE, knows_some, model), seed)
        found = rank_paths(tree)
        assert set(found) <= set(shape.paths)
        seen[len(found)] += 1
        if kind is not ProposalKind.WITH_REPLACEMENT:  # repeats have no children
            assert set(found) == model_knows(tree, shape)
    assert len(seen) > 2


def model_knows(tree: TokenTree, shape: TreeShape) -> set[tuple[int, ...]]:
    """The shape's nodes below known nodes; the toy knows two candidates at most."""
    host = tree.host()
    texts = {(): (0, 1)}
    for node, path in enumerate(rank_paths(tree), start=1):
        texts[path] = (*texts[path[:-1]], host.tokens[node])
    return {
        path
        for path in shape.paths
        if path[:-1] in texts and knows_some(texts[path[:-1]]) and path[-1] < 2
    }


def test_candidates_may_come_in_any_order_of_their_nodes() -> None:
    """Only within a node they must be the best first."""
    rows, tokens = torch.tensor([1, 0, 1, 0]), torch.tensor([5, 1, 2, 3])
    logprobs = torch.tensor([-0.1, -0.2, -2.0, -1.0])
    draft = SparseDraft(Children(rows, tokens, logprobs, rows * 0), 2)
    layer = given_tree([2, 2]).grow(
        replace(any_growth(TWO, [1, 2], draft, WIDE), depth=2)
    )
    assert layer is not None
    assert layer.parents.tolist() == [1, 1, 2, 2]
    assert layer.tokens.tolist() == [1, 3, 5, 2]


def test_only_nodes_that_the_shape_goes_on_from_are_expanded() -> None:
    """A draft forward reads no leaf."""
    chance = GeneratorChance(torch.Generator().manual_seed(0))
    for kind in (ProposalKind.DETERMINISTIC, ProposalKind.WITHOUT_REPLACEMENT):
        policy = StaticTree(UNEVEN, kind)
        steps = list(case(WIDE).grow(policy, chance))
        assert [growth.frontier.shape[0] for growth, _ in steps] == [1, 2, 1]
        assert len(steps) == UNEVEN.depth


@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_that_is_drawn_again_shares_the_subtree_of_its_first_draw(
    shape: TreeShape,
) -> None:
    certain = constant_model(0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    tree = grown(
        StaticTree(shape, ProposalKind.WITH_REPLACEMENT), case(WIDE, draft=certain)
    )
    firsts = {path for path in shape.paths if not any(path[:-1])}
    assert set(rank_paths(tree)) == firsts


def test_a_smaller_number_of_siblings_does_not_change_the_first_ones() -> None:
    """The widest node of a layer decides how many are drawn, not what."""
    counts = Counter[int]()
    policy = StaticTree(UNEVEN, ProposalKind.WITHOUT_REPLACEMENT)
    model = constant_model(0.5, 0.2, 0.1, 0.1, 0.05, 0.05)
    for seed in range(300):
        tree = grown(policy, case(WIDE, draft=model), seed)
        paths = rank_paths(tree)
        counts[int(tree.tokens[1 + paths.index((0, 0, 0))])] += 1
    assert counts[0] / 300 == pytest.approx(0.5, abs=0.09)


def test_a_large_shape_is_filled_up_to_the_budget() -> None:
    shape = widths_shape([4, 4, 4, 2, 1])
    draft = constant_model(*[1 / VOCAB_SIZE] * VOCAB_SIZE)
    tree = grown(StaticTree(shape), case(Budget(5, 99, 256), draft=draft))
    assert tree.num_drafted == 256


@given(st.lists(st.integers(-1, 5), max_size=12))
@repeatable
def test_sibling_ranks_count_the_earlier_ones(parents: list[int]) -> None:
    found = sibling_ranks(torch.tensor(parents, dtype=torch.int64)).tolist()
    assert found == [parents[:i].count(parent) for i, parent in enumerate(parents)]


def test_a_proposal_may_be_given_by_its_name() -> None:
    policy = given_tree([2], proposal="without_replacement")
    assert policy.proposal is ProposalKind.WITHOUT_REPLACEMENT
    assert policy.max_children == 2
    assert not policy.ends_siblings_early


@pytest.mark.parametrize("proposal", ["argmax_pair", "greedy_plus_random", "x", None])
def test_a_proposal_whose_children_depend_on_their_number_is_refused(
    proposal: ProposalKind,
) -> None:
    with pytest.raises(TreespecError, match=r"policy\.proposal=.*without_replacement"):
        given_tree([2], proposal=proposal)


def test_a_shape_must_be_one() -> None:
    with pytest.raises(TreespecError, match=r"policy\.shape must be a TreeShape"):
        StaticTree([[0]])


@pytest.mark.parametrize("both", [{}, {"widths": [1], "paths": [[0]]}])
def test_a_tree_needs_either_widths_or_paths(both: dict[str, list]) -> None:
    with pytest.raises(TreespecError, match=r"either policy\.widths.*, got"):
        given_tree(**both)
