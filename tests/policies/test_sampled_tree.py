"""Trees of drawn children: who gets how many, and which of them go on."""

import pytest
import torch
from torch import Tensor

from tests.policies.test_policies import LAWS, TWO, dense, growth
from tests.scripts import make_tree
from treespec.draft import Children, SparseDraft
from treespec.errors import TreespecError
from treespec.policies import SampledTree
from treespec.tree import NO_PARENT, TokenTree
from treespec.types import Budget, ProposalKind

DRAWN = [kind for kind in ProposalKind if kind is not ProposalKind.DETERMINISTIC]
ROOT_ONLY = make_tree([2], [NO_PARENT])


def with_paths(tree: TokenTree, *probs: float) -> TokenTree:
    logprobs: Tensor = torch.tensor([1.0, *probs]).log()
    return TokenTree(
        tree.tokens,
        tree.parents,
        logprobs,
        tree.sources,
        tree.proposal,
        None,
        tree.draft_rows,
    )


@pytest.mark.parametrize("kind", DRAWN)
def test_every_node_gets_its_children_where_there_is_room(kind: ProposalKind) -> None:
    layer = SampledTree(2, kind).grow(
        growth(TWO, [1, 2], dense(*LAWS), Budget(4, 8, 9))
    )
    assert layer is not None
    assert layer.parents.tolist() == [1, 1, 2, 2]
    assert layer.draft_probs is not None
    rows = layer.parents - 1
    probs = layer.draft_probs[rows, layer.tokens]
    assert layer.draft_logprobs.exp().tolist() == pytest.approx(probs.tolist())


def test_where_room_is_short_the_likeliest_paths_get_children() -> None:
    """Who gets children must not depend on the tokens that would be drawn."""
    for probs, parent in (((0.5, 0.3), 1), ((0.3, 0.5), 2)):
        tree = with_paths(TWO, *probs)
        layer = SampledTree(2).grow(growth(tree, [1, 2], dense(*LAWS), Budget(4, 3, 9)))
        assert layer is not None
        assert layer.parents.tolist() == [parent, parent]
        assert layer.draft_probs is not None
        assert layer.draft_probs.shape[0] == 2  # a row for each node of the frontier


def test_with_room_for_one_node_the_likeliest_path_gets_one_child() -> None:
    for kind in DRAWN:
        tree = with_paths(TWO, 0.2, 0.6)
        policy = SampledTree(2, kind)
        layer = policy.grow(growth(tree, [1, 2], dense(*LAWS), Budget(4, 1, 9)))
        assert layer is not None
        assert layer.parents.tolist() == [2]


def test_what_is_left_of_the_nodes_limits_the_children_of_one_node_as_well() -> None:
    for kind in DRAWN:
        tree = with_paths(TWO, 0.2, 0.6)
        policy = SampledTree(2, kind)
        layer = policy.grow(growth(tree, [1, 2], dense(*LAWS), Budget(4, 8, 3)))
        assert layer is not None
        assert layer.parents.tolist() == [2]


def test_the_nodes_that_get_children_keep_the_order_of_the_frontier() -> None:
    tree = with_paths(make_tree([2, 0, 3, 1], [NO_PARENT, 0, 0, 0]), 0.3, 0.1, 0.5)
    draft = dense(*LAWS, LAWS[0])
    layer = SampledTree(2).grow(growth(tree, [1, 2, 3], draft, Budget(4, 5, 9)))
    assert layer is not None
    assert layer.parents.tolist() == [1, 1, 3, 3]


def test_a_token_that_is_drawn_again_is_kept_and_not_expanded() -> None:
    """SpecHub's fork skips it, and with it a part of the law."""
    certain = dense([0.0, 1.0, 0.0, 0.0, 0.0])
    policy = SampledTree(3, ProposalKind.WITH_REPLACEMENT)
    layer = policy.grow(growth(ROOT_ONLY, [0], certain, Budget(4, 4, 9)))
    assert layer is not None
    assert layer.tokens.tolist() == [1, 1, 1]
    assert layer.expand is not None
    assert layer.expand.tolist() == [1]


def test_a_law_with_too_few_tokens_gives_fewer_children() -> None:
    two_tokens = dense([0.0, 0.9, 0.0, 0.1, 0.0])
    for kind in (ProposalKind.WITHOUT_REPLACEMENT, ProposalKind.GREEDY_PLUS_RANDOM):
        layer = SampledTree(4, kind).grow(
            growth(ROOT_ONLY, [0], two_tokens, Budget(4, 8, 9))
        )
        assert layer is not None
        assert sorted(layer.tokens.tolist()) == [1, 3]


def test_a_node_of_which_nothing_is_known_gets_no_children() -> None:
    row = torch.tensor([1, 1])
    known = Children(row, torch.tensor([3, 0]), torch.tensor([-0.5, -1.0]), row * 0 + 1)
    layer = SampledTree(2).grow(
        growth(TWO, [1, 2], SparseDraft(known, 2), Budget(4, 8, 9))
    )
    assert layer is not None
    assert layer.parents.tolist() == [2, 2]
    assert layer.sources.tolist() == [1, 1]


def test_a_proposal_may_be_given_by_its_name() -> None:
    policy = SampledTree(2, "argmax_pair")
    assert policy.proposal is ProposalKind.ARGMAX_PAIR
    assert policy.max_children == 2


@pytest.mark.parametrize(
    ("num_children", "proposal", "told"),
    [
        (0, "with_replacement", r"policy\.num_children must be an integer >= 1, got 0"),
        (2, "deterministic", "policy=top_k_tree"),
        (2, "with_replacment", "Did you mean .*with_replacement"),
        (3, "argmax_pair", r"policy\.num_children must be 2 for .*argmax_pair, got 3"),
        (1, "argmax_pair", r"policy\.num_children must be 2 for .*argmax_pair, got 1"),
        (2, None, r"policy\.proposal"),
        (2, ["with_replacement"], r"policy\.proposal"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    num_children: int, proposal: ProposalKind, told: str
) -> None:
    with pytest.raises(TreespecError, match=told):
        SampledTree(num_children, proposal)
