"""A dynamic tree of drawn children: where it draws, and that it stays lossless."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from treespec.acceptance import (
    AbstractAcceptanceRule,
    RejectionWithoutReplacement,
    SampleAndMatch,
    TraversalVerification,
)
from treespec.chance import GeneratorChance
from treespec.errors import TreespecError
from treespec.policies import AbstractDraftPolicy, SampledBestFirst, SampledTree
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
from treespec.testing.policy_cases import TEXT, GrownTree, PolicyCase
from treespec.testing.toys import Model, constant_model, random_model
from treespec.types import Budget

PLAIN = Sampling(1.0)
SETTINGS = [
    SampledBestFirst(),
    SampledBestFirst(power=1.0, threshold=1.0),
    SampledBestFirst(threshold=2.0),
]


def grown(
    policy: AbstractDraftPolicy, draft: Model, budget: Budget, seed: int = 0
) -> GrownTree:
    case = PolicyCase(draft, draft(TEXT).shape[0], budget, PLAIN)
    return case.grown(policy, GeneratorChance(torch.Generator().manual_seed(seed)))


def nodes_by_depth(one: GrownTree) -> list[int]:
    depths = one.tree.host().depths()
    return [depths.count(depth) for depth in range(1, max(depths) + 1)]


@pytest.mark.parametrize("policy", SETTINGS, ids=repr)
@pytest.mark.parametrize(
    "rule", [RejectionWithoutReplacement(), TraversalVerification(), SampleAndMatch()]
)
@pytest.mark.parametrize(
    ("budget", "vocab_size"), [(Budget(2, 3, 4), 3), (Budget(3, 2, 5), 2)]
)
def test_the_text_has_the_targets_law_exactly(
    policy: AbstractDraftPolicy,
    rule: AbstractAcceptanceRule,
    budget: Budget,
    vocab_size: int,
) -> None:
    """Although drawn tokens decide who is drawn next, also among their elders."""
    draft = random_model(vocab_size, seed=2, spread=1.0)
    target = random_model(vocab_size, seed=1, spread=1.0)
    case = PolicyCase(draft, vocab_size, budget, PLAIN)
    setting = Setting(target, draft, policy.proposal, (), PLAIN)
    played: list[tuple[float, Round]] = []
    for draft_weight, one in outcomes(partial(case.grown, policy)):
        for weight, outcome in play_accept(rule, setting, TEXT, one.tree):
            played.append((draft_weight * weight, outcome))
    length = budget.max_depth + 1
    law = continued_law(setting, TEXT, played, length)
    assert distance(law, autoregressive_law(setting, TEXT, length)) < 1e-12


def test_siblings_may_be_drawn_after_the_children_of_their_elders() -> None:
    """Else the kit would never look at what makes this policy hard."""
    late = 0
    for seed in range(20):
        policy = SampledBestFirst(threshold=1.0)
        one = grown(policy, random_model(5, 3), Budget(4, 4, 10), seed)
        for children in one.tree.host().children():
            late += any(
                one.layers[child] > one.layers[children[0]] for child in children
            )
    assert late > 5


def test_a_sure_draft_makes_a_line_and_an_unsure_one_a_bush() -> None:
    budget = Budget(max_depth=6, max_width=6, max_nodes=6)
    sure = constant_model(0.999, *[0.00025] * 4)
    unsure = constant_model(*[0.2] * 5)
    assert nodes_by_depth(grown(SampledBestFirst(), sure, budget)) == [1] * 6
    bush = nodes_by_depth(grown(SampledBestFirst(1.0, 0.25), unsure, budget))
    assert bush[0] == 5


def test_the_whole_budget_is_spent_while_laws_have_tokens() -> None:
    """At the last expansion, or when none is worth it, it goes to siblings."""
    for seed in range(10):
        for policy in SETTINGS:
            for max_depth, max_nodes in ((6, 12), (1, 7)):
                budget = Budget(max_depth, 12, max_nodes)
                one = grown(policy, random_model(9, seed), budget, seed)
                assert one.tree.num_drafted == max_nodes


def test_a_law_that_runs_out_ends_its_siblings() -> None:
    """Float rounding leaves a little mass behind the last token: none may be drawn."""
    thirds = constant_model(1 / 3, 1 / 3, 1 / 3, 0.0)
    one = grown(SampledBestFirst(1.0, 0.01), thirds, Budget(1, 9, 9))
    assert sorted(one.tree.tokens.tolist()[1:]) == [0, 1, 2]


def test_where_nothing_is_known_it_asks_what_else_there_is() -> None:
    """A node without a law stays without children, and others have their turn."""
    policy, budget = SampledBestFirst(power=1.0), Budget(5, 4, 12)
    for seed in range(20):
        case = PolicyCase(
            random_model(4, 3), 4, budget, PLAIN, known=lambda text: text[-1] != 2
        )
        chance = GeneratorChance(torch.Generator().manual_seed(seed))
        host = case.tree(policy, chance).host()
        for node, children in enumerate(host.children()):
            assert not children or node == 0 or host.tokens[node] != 2
    nothing = replace(case, known=lambda text: False)
    assert nothing.tree(policy, chance).num_drafted == 0


def test_a_higher_power_makes_wider_trees_and_a_higher_threshold_asks_less_often() -> (
    None
):
    def mean(policy: SampledBestFirst, of: str) -> float:
        found = 0.0
        for seed in range(30):
            one = grown(policy, random_model(8, seed), Budget(6, 4, 16), seed)
            depth = len(nodes_by_depth(one))
            found += {"depth": depth, "forwards": max(one.layers)}[of]
        return found / 30

    depths = [mean(SampledBestFirst(power), "depth") for power in (1.0, 0.4, 0.1)]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1] - 1
    forwards = [
        mean(SampledBestFirst(1.0, threshold), "forwards")
        for threshold in (0.25, 1.0, 4.0)
    ]
    assert forwards == sorted(forwards, reverse=True)
    assert forwards[0] > forwards[-1] + 0.5


def test_it_accepts_more_than_a_tree_of_fixed_width_with_as_many_nodes() -> None:
    """With a draft that knows much; and it asks the draft no more often."""
    target, noise = random_model(30, 1, spread=2.0), random_model(30, 2, spread=0.7)

    def draft(text: tuple[int, ...]) -> torch.Tensor:
        return target(text) + noise(text)

    accepted, forwards = {}, {}
    for policy in (SampledTree(2), SampledBestFirst()):
        accepted[policy], forwards[policy] = 0, 0
        for seed in range(150):
            case = PolicyCase(
                lambda text, seed=seed: draft((seed, *text)),
                30,
                Budget(5, 4, 12),
                PLAIN,
            )
            draws, luck = (
                GeneratorChance(torch.Generator().manual_seed(n)) for n in (seed, -seed)
            )
            one = case.grown(policy, draws)
            setting = Setting(
                lambda text, seed=seed: target((seed, *text)),
                case.draft,
                policy.proposal,
                (),
                PLAIN,
            )
            logits = setting.verify(one.tree, TEXT)
            found = TraversalVerification().accept(one.tree, logits, PLAIN, luck)
            accepted[policy] += len(found.node_ids)
            forwards[policy] += max(one.layers)
    fixed, best_first = accepted
    assert accepted[best_first] > 1.1 * accepted[fixed]
    assert forwards[best_first] <= forwards[fixed]


@pytest.mark.parametrize("option", ["power", "threshold"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_option_is_refused(option: str, value: float) -> None:
    with pytest.raises(TreespecError, match=rf"policy\.{option} must be > 0, got"):
        SampledBestFirst(**{option: value})
