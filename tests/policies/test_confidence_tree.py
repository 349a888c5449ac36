"""Deep where the draft is sure, wide where it is not."""

import pytest
import torch

from tests.policies.test_policies import TWO, dense, growth, nothing
from tests.policies.test_sampled_tree import with_paths
from treespec.chance import GeneratorChance
from treespec.errors import TreespecError
from treespec.policies import ConfidenceTree
from treespec.testing.policy_cases import PolicyCase
from treespec.testing.toys import single
from treespec.types import Budget

EVEN = [0.4, 0.3, 0.2, 0.1, 0.0]


def shape(probs: list[float], policy: ConfidenceTree, budget: Budget) -> list[int]:
    """Nodes at every depth, if every node has the same law."""
    logits = torch.tensor(probs).log()
    case = PolicyCase(single(lambda text: logits), len(probs), budget)
    chance = GeneratorChance(torch.Generator())
    depths = case.tree(policy, chance).host().depths()
    return [depths.count(depth) for depth in range(1, max(depths) + 1)]


def test_the_same_nodes_make_a_line_or_a_bush() -> None:
    budget = Budget(max_depth=9, max_width=6, max_nodes=6)
    sure, unsure = [0.9, 0.05, 0.03, 0.02], [0.28, 0.25, 0.24, 0.23]
    policy = ConfidenceTree(max_children=4, ratio=0.5)
    assert shape(sure, policy, budget) == [1, 1, 1, 1, 1, 1]
    assert shape(unsure, policy, budget) == [4, 2]


def test_a_path_is_measured_by_the_best_one_of_its_layer() -> None:
    """Below node 1 (as likely as node 2) paths of 0.7 and 0.2; below 2, 0.4 and 0.3."""
    draft = dense([0.1, 0.2, 0.7, 0.0, 0.0], EVEN)
    for ratio, kept in (
        (1.0, [2]),
        (0.5, [2, 0]),
        (0.4, [2, 0, 1]),
        (0.0, [2, 1, 0, 1]),
    ):
        policy = ConfidenceTree(max_children=2, ratio=ratio)
        layer = policy.grow(growth(TWO, [1, 2], draft, Budget(4, 9, 20)))
        assert layer is not None
        assert layer.tokens.tolist() == kept
        assert layer.draft_probs is None


def test_a_likely_token_below_an_unlikely_one_is_not_kept() -> None:
    tree = with_paths(TWO, 0.9, 0.1)
    policy = ConfidenceTree(max_children=2, ratio=0.5)
    layer = policy.grow(growth(tree, [1, 2], dense(EVEN, EVEN), Budget(4, 9, 20)))
    assert layer is not None
    assert layer.parents.tolist() == [1, 1]


def test_what_has_no_room_is_left_out_from_the_bottom() -> None:
    draft = dense([0.1, 0.2, 0.7, 0.0, 0.0], EVEN)
    policy = ConfidenceTree(max_children=2, ratio=0.0)
    for budget in (Budget(4, 3, 20), Budget(4, 9, 5)):
        layer = policy.grow(growth(TWO, [1, 2], draft, budget))
        assert layer is not None
        assert layer.tokens.tolist() == [2, 0, 1]
        assert layer.parents.tolist() == [1, 2, 2]


def test_fewer_children_than_are_near_may_be_asked_for() -> None:
    for most in (1, 2, 3):
        layer = ConfidenceTree(most, ratio=0.1).grow(
            growth(TWO, [1], dense(EVEN), Budget(4, 9, 20))
        )
        assert layer is not None
        assert layer.size == most


def test_without_candidates_it_stops() -> None:
    assert ConfidenceTree().grow(growth(TWO, [1], nothing(1), Budget(4, 4, 9))) is None


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_an_impossible_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(TreespecError, match=r"policy\.ratio must be in \[0, 1\], got"):
        ConfidenceTree(ratio=ratio)


def test_no_children_at_all_are_refused() -> None:
    with pytest.raises(TreespecError, match=r"policy\.max_children"):
        ConfidenceTree(max_children=0)
