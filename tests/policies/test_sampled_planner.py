"""The planner of drawn trees: the text keeps its law, and costs decide the rest."""

from functools import partial

import pytest
import torch

from tests.policies.test_planner import FLAT, SLOW, STEEP
from treespec.acceptance import (
    AbstractAcceptanceRule,
    BlockVerification,
    ChainSpeculative,
    RejectionWithoutReplacement,
    SampleAndMatch,
    TraversalVerification,
)
from treespec.belief import Belief
from treespec.chance import GeneratorChance
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel
from treespec.models.table import TableModel
from treespec.policies import SampledPlanner
from treespec.sampling import Sampling
from treespec.testing.enumeration import outcomes
from treespec.testing.laws import (
    Round,
    Setting,
    autoregressive_law,
    continued_law,
    distance,
    play_accept,
)
from treespec.testing.policies import check_draft_policy
from treespec.testing.policy_cases import TEXT, GrownTree, PolicyCase
from treespec.testing.toys import Model, constant_model, random_model
from treespec.types import Budget, ProposalKind, StepRecord
from treespec.verifiers import TreeAttention

PLAIN = Sampling(1.0)
WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT


@pytest.mark.parametrize(
    "policy",
    [
        SampledPlanner(WITH),
        SampledPlanner(WITHOUT, FLAT),
        SampledPlanner(WITHOUT, SLOW, max_children=1),
    ],
    ids=["with", "without", "chain"],
)
def test_children_are_drawn_as_it_says(policy: SampledPlanner) -> None:
    assert check_draft_policy(policy).largest_deviation < 1e-12


@pytest.mark.parametrize(
    ("rule", "max_children"),
    [
        (RejectionWithoutReplacement(), 3),
        (TraversalVerification(), 3),
        (SampleAndMatch(), 3),
        (ChainSpeculative(), 1),
        (BlockVerification(), 1),
    ],
)
@pytest.mark.parametrize("costs", [FLAT, STEEP])
def test_the_text_has_the_targets_law_exactly(
    rule: AbstractAcceptanceRule, max_children: int, costs: Costs
) -> None:
    policy = SampledPlanner(WITHOUT, costs, max_children=max_children)
    draft = random_model(3, seed=2, spread=1.0)
    target = random_model(3, seed=1, spread=1.0)
    case = PolicyCase(draft, 3, Budget(2, 3, 4), PLAIN)
    setting = Setting(target, draft, policy.proposal, (), PLAIN)
    played: list[tuple[float, Round]] = []
    for draft_weight, one in outcomes(partial(case.grown, policy)):
        for weight, outcome in play_accept(rule, setting, TEXT, one.tree):
            played.append((draft_weight * weight, outcome))
    law = continued_law(setting, TEXT, played, 3)
    assert distance(law, autoregressive_law(setting, TEXT, 3)) < 1e-12


def grown(policy: SampledPlanner, draft: Model, budget: Budget) -> GrownTree:
    case = PolicyCase(draft, draft(TEXT).shape[0], budget, PLAIN)
    return case.grown(policy, GeneratorChance(torch.Generator().manual_seed(0)))


def test_costs_and_laws_decide_depth_and_width() -> None:
    budget = Budget(max_depth=8, max_width=8, max_nodes=16)
    sure, unsure = constant_model(0.998, *[0.0005] * 4), constant_model(*[0.2] * 5)

    def depth_and_size(draft: Model, costs: Costs) -> tuple[int, int]:
        tree = grown(SampledPlanner(costs=costs), draft, budget).tree
        return max(tree.host().depths()), tree.num_drafted

    assert depth_and_size(sure, SLOW)[0] >= 4
    assert depth_and_size(unsure, FLAT)[1] > depth_and_size(unsure, SLOW)[1]
    assert depth_and_size(unsure, STEEP)[1] <= 1


def decoded(draft: TableModel, num_tokens: int) -> tuple[StepRecord, ...]:
    table = [0.0, 1.0, 2.0, 3.0]
    decoder = SpeculativeDecoder(
        TableModel(lambda text: table, 4),
        DraftModel(draft),
        SampledPlanner(costs=SLOW),
        RejectionWithoutReplacement(),
        TreeAttention(),
        Constant(max_depth=8, max_width=8, max_nodes=16),
    )
    (result,) = decoder.generate([[1, 2]], PLAIN, num_tokens, seed=3)
    return result.steps


def test_a_draft_that_is_always_refused_is_left_alone() -> None:
    steps = decoded(TableModel(lambda text: [60.0, 0, 0, 0], 4), 120)
    late = steps[40:]
    assert sum(step.num_draft_forwards > 0 for step in late) < 0.2 * len(late)


def test_a_draft_with_the_targets_law_is_used_and_its_acceptance_learned() -> None:
    steps = decoded(TableModel(lambda text: [0.0, 1.0, 2.0, 3.0], 4), 120)
    accepted = sum(step.num_accepted for step in steps) / len(steps)
    assert accepted > 1.7
    expected = sum(step.expected_accepted or 0.0 for step in steps[5:])
    assert expected / len(steps[5:]) == pytest.approx(accepted, rel=0.3)
    belief = Belief(drawn=True)
    for step in steps:
        belief = belief.observe(step)
    # Whatever its probability: the law is right, so every draw is accepted.
    assert belief.chance("draft_model", 0.09, 0) > 0.8


def test_a_token_that_was_drawn_again_is_not_expanded_again() -> None:
    """It shares the subtree of its first draw: a forward for it would be wasted."""
    policy = SampledPlanner(WITH, FLAT)
    case = PolicyCase(constant_model(0.8, 0.2), 2, Budget(4, 6, 16), PLAIN)
    repeated = 0
    for growth, layer in case.grow(policy, GeneratorChance(torch.Generator())):
        tree = growth.tree.extend(layer, growth.frontier)
        pairs = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        first = {pair: node for node, pair in reversed(list(enumerate(pairs)))}
        repeated += len(pairs) - len(first)
        assert layer.expand is not None
        for node in layer.expand.tolist():
            assert first[pairs[node]] == node
    assert repeated
