"""The planner: what it chooses is best by its own numbers, and it does no harm."""

import math
import random
from dataclasses import asdict, dataclass, replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import greedy_table, make_tree, mixing
from tests.strategies import parent_lists, repeatable
from treespec.acceptance import Greedy
from treespec.belief import BeliefMemory
from treespec.chance import GeneratorChance
from treespec.controllers import Constant
from treespec.costs import CostCurve, Costs
from treespec.decoder import SpeculativeDecoder
from treespec.draft import DenseDraft
from treespec.drafters import Cascade, DraftModel, PromptLookup
from treespec.errors import TreespecError
from treespec.models.table import TableModel
from treespec.policies import (
    AbstractDraftPolicy,
    Growth,
    Planner,
    SampledPlanner,
    Situation,
)
from treespec.policies.lookahead import OpenNode, Prospects, best_option, best_prefix
from treespec.policies.planner import REASONS
from treespec.policies.tree_plan import read_tree
from treespec.sampling import Sampling
from treespec.testing.policies import check_draft_policy
from treespec.tree import ROOT, TokenTree, root_tree
from treespec.types import Budget, GenerationResult, ProposalKind
from treespec.verifiers import TreeAttention

SLOW = Costs.through(
    {1: 0.112, 4: 0.118, 8: 0.238, 64: 1.9}, {1: 0.028, 64: 0.19, 1024: 2.6}, 0.003
)
"""A machine whose target verifies four rows as fast as one, as a CPU does."""
FLAT = Costs.through({1: 0.1, 64: 0.1}, {1: 0.01, 64: 0.011, 1024: 0.1}, 0.001)
STEEP = Costs.through({1: 0.1, 2: 0.2, 64: 6.4}, {1: 0.01, 64: 0.011}, 0.001)
ROOMY = Budget(max_depth=12, max_width=16, max_nodes=32)
SIZE = 24


@pytest.mark.parametrize("costs", [None, SLOW, FLAT, STEEP])
def test_the_planner_keeps_the_contract_of_policies(costs: Costs | None) -> None:
    assert check_draft_policy(Planner(costs)).largest_deviation < 1e-12


# --- its choice is the best one by its own numbers ---------------------------------


@repeatable
@given(
    st.lists(st.floats(0, 1), max_size=8),
    st.lists(st.floats(0, 0.5), min_size=9, max_size=9),
)
def test_no_other_number_of_nodes_is_worth_more(values, steps) -> None:
    values = sorted(values, reverse=True)
    prices = [0.0]
    for step in steps[1:]:
        prices.append(prices[-1] + step)
    worths = [sum(values[:k]) - prices[k] for k in range(len(values) + 1)]
    assert best_prefix(values, prices).worth == pytest.approx(max(worths))


@repeatable
@given(parent_lists(max_nodes=9), st.data())
def test_no_other_subtree_is_worth_more_than_the_one_that_is_kept(parents, data):
    """Brute force over all trees that contain with every node its parent."""
    probs = [
        data.draw(st.floats(0.01, 1)) if parent >= 0 else 1.0 for parent in parents
    ]
    tree = replace(
        make_tree(list(range(len(parents))), parents),
        draft_logprobs=torch.tensor(probs, dtype=torch.float64).log(),
    )
    costs = data.draw(st.sampled_from([SLOW, FLAT, STEEP]))
    policy = Planner(costs)
    situation = Situation(policy.init(), 10, 50, 1, 1, ("draft_model",), True)
    outlook = policy.outlook(situation)
    plan = read_tree(tree, outlook)
    prices = outlook.prices.target(8)

    def worth(nodes) -> float:
        return sum(plan.values[node] for node in nodes) - prices[len(nodes)]

    best = -math.inf
    for chosen in product((False, True), repeat=len(parents) - 1):
        nodes = [node for node, is_in in enumerate(chosen, 1) if is_in]
        if all(parents[node] in (ROOT, *nodes) for node in nodes):
            best = max(best, worth(nodes))
    kept = policy.prune(tree, Budget(8, 8, 8), situation).tolist()[1:]
    assert all(parents[node] in (ROOT, *kept) for node in kept)
    assert worth(kept) == pytest.approx(best, abs=1e-9)


@repeatable
@given(
    st.floats(0.05, 1),
    st.floats(0, 0.4),
    st.lists(st.floats(0, 0.4), min_size=6, max_size=6),
    st.lists(st.floats(0.05, 1), max_size=3),
)
def test_no_other_number_of_draft_forwards_is_worth_more(chance, price, steps, values):
    """Brute force over all points at which a line may stop, and over all prefixes."""
    values = sorted(values, reverse=True)
    prices = [0.0]
    for step in steps:
        prices.append(prices[-1] + step)
    prospects = Prospects(deep=chance, second=0.0, max_forwards=4, max_width=1)
    nodes = [OpenNode(1.0, chance)]
    option = best_option(values, nodes, prices, lambda width, is_next: price, prospects)
    gains = []
    for forwards in range(5):
        line = [chance**level for level in range(1, forwards + 1)]
        ranked = sorted([*values, *line], reverse=True)
        worths = [sum(ranked[:k]) - prices[k] for k in range(min(len(ranked), 6) + 1)]
        gains.append(max(worths) - forwards * price)
    best = max(gains) - gains[0]
    # It does not look further once a level is worth less than half of its forward.
    assert option.gain <= best + 1e-9
    assert option.gain >= best - price / 2 - 0.02


def test_one_forward_that_does_not_pay_may_be_the_first_of_four_that_do() -> None:
    """Where verifying four nodes costs as much as one, but one is not worth it."""
    prices = [0.0, 0.9, 0.9, 0.9, 0.9]
    prospects = Prospects(deep=0.95, second=0.0, max_forwards=1, max_width=1)
    nodes = [OpenNode(1.0, 0.95)]
    near = best_option((), nodes, prices, lambda *_: 0.2, prospects)
    assert near.gain == 0
    far = best_option(
        (), nodes, prices, lambda *_: 0.2, replace(prospects, max_forwards=4)
    )
    assert far.num_forwards == 4
    assert far.gain > 1.5


def test_nodes_that_do_not_pay_for_a_forward_alone_may_share_one() -> None:
    prices = [0.0] * 9
    prospects = Prospects(deep=0.5, second=0.0, max_forwards=1, max_width=4)
    nodes = [OpenNode(0.3, 0.6)] * 4
    assert best_option((), nodes[:1], prices, lambda *_: 0.3, prospects).gain == 0
    option = best_option((), nodes, prices, lambda *_: 0.3, prospects)
    assert option.width == 4
    assert option.gain == pytest.approx(4 * 0.18 - 0.3)


@dataclass(frozen=True, slots=True)
class Forgetful(AbstractDraftPolicy):
    """A planner that is never handed its notes, so that it reads the tree again."""

    planner: Planner
    proposal, max_children, prunes = ProposalKind.DETERMINISTIC, None, True

    def init(self):
        return self.planner.init()

    def observe(self, state, record):
        return self.planner.observe(state, record)

    def opens(self, situation, budget):
        return self.planner.opens(situation, budget)

    def grow(self, growth):
        return self.planner.grow(replace(growth, note=None))

    def prune(self, tree, budget, situation):
        return self.planner.prune(tree, budget, situation)


@pytest.mark.parametrize("costs", [FLAT, SLOW, STEEP])
def test_what_a_planner_noted_is_what_it_would_read_in_the_tree(costs: Costs) -> None:
    noted, read = (
        [
            (step.num_candidates, step.num_nodes, step.depth, step.num_draft_forwards)
            for step in decoded(perfect_after(20), 60, policy, lookup=True)[0].steps
        ]
        for policy in (Planner(costs), Forgetful(Planner(costs)))
    )
    assert noted == read
    assert max(candidates for candidates, *_ in noted) > 2


# --- shapes ------------------------------------------------------------------------


def grown(policy: Planner, law: list[float], costs_forwards: int = 0) -> TokenTree:
    """Grow and prune a tree of a draft model that always says the same."""
    state = policy.init()
    situation = Situation(state, 20, 100, 1, 1, ("draft_model",), True)
    tree = root_tree(1, policy.proposal, torch.device("cpu"))
    frontier = torch.tensor([ROOT])
    for depth in range(1, ROOMY.max_depth + 1):
        logits = torch.tensor(law).log().expand(frontier.shape[0], -1)
        layer = policy.grow(
            Growth(
                tree=tree,
                frontier=frontier,
                draft=DenseDraft(logits),
                budget=ROOMY,
                depth=depth,
                committed=[1],
                sampling=Sampling(),
                vocab_size=len(law),
                chance=GeneratorChance(torch.Generator()),
                situation=situation,
                num_forwards=depth,
            )
        )
        if layer is None:
            break
        tree = tree.extend(layer, frontier)
        assert layer.expand is not None
        frontier = layer.expand
        if not frontier.numel():
            break
    return tree.select(policy.prune(tree, ROOMY, situation))


def shape(tree: TokenTree) -> tuple[int, int]:
    """Return depth and largest width."""
    depths = tree.host().depths()
    per = [depths.count(depth) for depth in range(1, max(depths) + 1)]
    return len(per), max(per, default=0)


def test_flat_costs_make_wide_trees_and_steep_ones_narrow() -> None:
    law = [0.5, 0.3, 0.15, 0.05]
    wide, narrow = (shape(grown(Planner(costs), law)) for costs in (FLAT, STEEP))
    assert wide[1] >= 4
    assert narrow[1] <= 1


def test_a_sure_draft_makes_deep_trees_and_an_unsure_one_shallow_ones() -> None:
    sure = shape(grown(Planner(SLOW), [0.997, 0.001, 0.001, 0.001]))
    unsure = shape(grown(Planner(SLOW), [0.4, 0.3, 0.2, 0.1]))
    assert sure[0] >= 5
    assert unsure[0] <= 2


def test_throughput_values_a_node_by_what_it_adds_under_load() -> None:
    law = [0.6, 0.3, 0.05, 0.05]
    sizes = [
        grown(Planner(SLOW, "throughput", load), law).num_drafted for load in (1, 8)
    ]
    assert sizes[0] > sizes[1]


def test_reading_a_long_prompt_is_weighed_against_what_is_left() -> None:
    policy = Planner(SLOW)

    def opens(num_unread: int, remaining: int) -> bool:
        situation = Situation(
            policy.init(), 700, remaining, num_unread, 1, ("draft_model",), True
        )
        return policy.opens(situation, ROOMY)

    assert opens(2, 10)
    assert opens(700, 200)
    assert not opens(700, 4)


# --- whole runs ---------------------------------------------------------------------


def decoded(
    draft, num_tokens: int, policy: Planner, prompts=((1, 2, 3),), lookup=False
) -> list[GenerationResult]:
    target = greedy_table(mixing(SIZE, 2), SIZE)
    drafter = DraftModel(draft)
    if lookup:
        drafter = Cascade((PromptLookup(), drafter), (0.5,))
    decoder = SpeculativeDecoder(
        target,
        drafter,
        policy,
        Greedy(),
        TreeAttention(),
        Constant(
            max_depth=ROOMY.max_depth,
            max_width=ROOMY.max_width,
            max_nodes=ROOMY.max_nodes,
        ),
        max_concurrent=1,
    )
    plain = decoder.autoregressive().generate(prompts, max_new_tokens=num_tokens)
    results = decoder.generate(prompts, max_new_tokens=num_tokens)
    assert [r.tokens for r in results] == [r.tokens for r in plain]
    return results


def flat_draft(seed: int) -> TableModel:
    """A draft model that knows nothing and does not claim to."""
    rng = random.Random(seed)
    logits = [rng.random() for _ in range(SIZE)]
    return TableModel(lambda text: logits, SIZE)


def sure_but_wrong() -> TableModel:
    """A draft model that is sure of a token that the target never says."""
    return TableModel(lambda text: [20.0] + [0.0] * (SIZE - 1), SIZE)


def perfect_after(num_tokens: int) -> TableModel:
    """A draft model that is useless at first, and then the target itself."""
    good, bad = mixing(SIZE, 2), flat_draft(1)

    def table(text):
        if len(text) < num_tokens:
            return bad._table(text)
        return [8.0 * (token == good(text)) for token in range(SIZE)]

    return TableModel(table, SIZE)


def predicted_s(result: GenerationResult, costs: Costs) -> float:
    total = 0.0
    for step in result.steps:
        total += costs.target(1 + step.num_nodes) + costs.step_s
        if step.num_draft_forwards:
            total += costs.draft(max(step.num_unread, 1))
            total += (step.num_draft_forwards - 1) * costs.draft(2)
    return total


@pytest.mark.parametrize(
    ("draft", "most"), [(flat_draft(0), 1.01), (sure_but_wrong(), 1.035)]
)
def test_a_useless_draft_costs_little(draft: TableModel, most: float) -> None:
    """One that is sure of what is wrong costs one deep tree more to find out."""
    (result,) = decoded(draft, 400, Planner(SLOW))
    plain_s = (len(result.tokens) - 1) * (SLOW.target(1) + SLOW.step_s)
    assert predicted_s(result, SLOW) < most * plain_s
    assert {step.reason for step in result.steps[-100:-1]} == {REASONS[3]}


def test_a_perfect_draft_makes_trees_as_deep_as_the_costs_allow() -> None:
    (result,) = decoded(perfect_after(0), 100, Planner(SLOW))
    plain_s = 99 * (SLOW.target(1) + SLOW.step_s)
    assert predicted_s(result, SLOW) < plain_s / 1.6
    assert all(step.depth >= 3 for step in result.steps[5:-2])


def test_a_draft_that_becomes_useful_is_found_again() -> None:
    """On a machine that reads what it missed quickly: else that is not worth it."""
    costs = replace(SLOW, draft_curve=CostCurve.through({1: 0.028, 1024: 0.06}))
    (result,) = decoded(perfect_after(100), 330, Planner(costs))
    off = [step for step in result.steps if step.step in range(30, 90)]
    assert sum(step.num_draft_forwards > 0 for step in off) < 6
    assert sum(step.num_accepted for step in result.steps[-10:]) > 20


def test_predicted_seconds_are_those_of_the_costs() -> None:
    (result,) = decoded(perfect_after(0), 60, Planner(SLOW))
    total = sum(step.expected_s or 0.0 for step in result.steps)
    assert total == pytest.approx(predicted_s(result, SLOW), rel=0.1)
    expected = sum(step.expected_accepted or 0.0 for step in result.steps)
    assert expected == pytest.approx(sum(s.num_accepted for s in result.steps), rel=0.3)


def test_without_measured_costs_it_says_no_seconds_but_works() -> None:
    (result,) = decoded(perfect_after(0), 60, Planner())
    assert all(step.expected_s is None for step in result.steps)
    assert sum(step.num_accepted for step in result.steps) > 30


@pytest.mark.parametrize("draft", [flat_draft(0), perfect_after(60)])
@pytest.mark.parametrize("lookup", [False, True])
def test_records_give_every_state_and_every_decision_again(draft, lookup) -> None:
    policy, num_tokens, prompt = Planner(SLOW), 150, (1, 2, 3)
    (result,) = decoded(draft, num_tokens, policy, (prompt,), lookup)
    names = ("prompt_lookup", "draft_model") if lookup else ("draft_model",)
    state, done = policy.init(), 1
    for step in result.steps:
        remaining = num_tokens - done
        situation = Situation(
            state, len(prompt) + done, remaining, step.num_unread, 1, names, True
        )
        budget = Budget(step.max_depth, step.max_width, step.max_nodes)
        if not budget.speculates:  # the last token
            assert step.reason is None
            continue
        is_open = policy.opens(situation, budget)
        if not is_open:
            assert step.num_draft_forwards == 0
        elif not lookup:
            assert step.num_draft_forwards > 0
        assert step.reason in REASONS
        state = policy.observe(state, step)
        assert state == policy.observe(situation.state, step)
        done += step.num_committed
    assert all(
        math.isfinite(value)
        for value in asdict(state).values()
        if isinstance(value, float)
    )


def test_measured_seconds_decide_nothing() -> None:
    """Outliers, zeros and NaN of a clock are logged, and nothing else."""
    policy = Planner(SLOW)
    (result,) = decoded(perfect_after(0), 40, policy)
    states = []
    for seconds in (0.0, math.nan, 1e9):
        state = policy.init()
        for step in result.steps:
            odd = replace(step, step_s=seconds, verify_s=seconds, draft_s=seconds)
            state = policy.observe(state, odd)
        states.append(state)
    assert states[0] == states[1] == states[2]


def test_requests_know_nothing_of_each_other_unless_they_share_a_memory() -> None:
    """Public case 45: what one request taught must not leak into the next."""
    prompts = ((1, 2, 3), (4, 5, 6))
    draft = flat_draft(0)

    def forwards(policy: Planner, prompts) -> int:
        last = decoded(draft, 40, policy, prompts)[-1]
        return sum(step.num_draft_forwards for step in last.steps)

    alone = forwards(Planner(SLOW), prompts[1:])
    assert forwards(Planner(SLOW), prompts) == alone > 2
    warm = Planner(SLOW, memory=BeliefMemory())
    assert forwards(warm, prompts) < alone
    assert forwards(warm, prompts[1:]) < alone


@pytest.mark.parametrize("make", [Planner, SampledPlanner])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"objective": "speed"}, "policy.objective=speed"),
        ({"max_children": 0}, "policy.max_children must be"),
        ({"load": 0}, "policy.load must be"),
        ({"memory": 3}, "policy.memory must be null or a BeliefMemory"),
        ({"costs": {"target": 1.0}}, "policy.costs must be null or measured costs"),
    ],
)
def test_impossible_fields_are_refused_in_one_line(make, fields, words) -> None:
    with pytest.raises(TreespecError, match=words) as caught:
        make(**fields)
    assert "\n" not in str(caught.value)


def test_a_sampled_planner_refuses_kinds_whose_number_of_children_matters() -> None:
    for kind in ("deterministic", "argmax_pair"):
        with pytest.raises(TreespecError, match=r"policy\.proposal="):
            SampledPlanner(ProposalKind(kind))
