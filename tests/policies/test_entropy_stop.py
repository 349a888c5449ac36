"""Trees end below nodes of which the draft is unsure, and nothing drawn is dropped."""

import math
from dataclasses import replace

import pytest
import torch

from tests.policies.test_policies import LAWS, TWO, dense, growth, nothing
from tests.scripts import make_tree
from treespec.costs import Costs
from treespec.draft import Children, SparseDraft
from treespec.errors import TreespecError
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    EntropyStop,
    Planner,
    SampledBestFirst,
    SampledChain,
    SampledTree,
    TopKTree,
)
from treespec.sampling import Sampling
from treespec.tree import NO_PARENT
from treespec.types import Budget

ROOT_ONLY = make_tree([2], [NO_PARENT])
BUDGET = Budget(4, 8, 20)
FLAT, SURE = [0.25, 0.25, 0.25, 0.25, 0.0], [0.97, 0.01, 0.01, 0.01, 0.0]
# With gamma 0.2, 1 - sqrt(0.2 * ln 4) is 0.473; the sure law has H = 0.168: 0.817.


@pytest.mark.parametrize("policy", [Chain(), SampledChain(), TopKTree(2)], ids=repr)
def test_the_estimate_is_that_of_the_paper(policy: AbstractDraftPolicy) -> None:
    estimate = 1 - math.sqrt(0.2 * math.log(4))
    for threshold, goes_on in ((estimate - 1e-4, True), (estimate + 1e-4, False)):
        stop = EntropyStop(policy, threshold)
        layer = stop.grow(growth(ROOT_ONLY, [0], dense(FLAT), BUDGET))
        assert layer is not None
        assert layer.expand is not None
        assert (layer.expand.shape[0] > 0) == goes_on


@pytest.mark.parametrize(
    "policy", [Chain(), SampledChain(), SampledTree(2), TopKTree(2)], ids=repr
)
def test_what_was_drawn_is_kept_whatever_the_law(policy: AbstractDraftPolicy) -> None:
    """A stop that drops the token that it was just about to look at biases the text."""
    for law in (FLAT, SURE):
        alone = policy.grow(growth(ROOT_ONLY, [0], dense(law), BUDGET))
        stopped = EntropyStop(policy, 0.999).grow(
            growth(ROOT_ONLY, [0], dense(law), BUDGET)
        )
        assert alone is not None
        assert stopped is not None
        assert stopped.tokens.tolist() == alone.tokens.tolist()
        assert stopped.parents.tolist() == alone.parents.tolist()
        assert stopped.expand is not None
        assert stopped.expand.tolist() == []


def test_a_tree_goes_on_below_the_nodes_of_which_the_draft_is_sure() -> None:
    stop = EntropyStop(TopKTree(2), 0.6)
    layer = stop.grow(growth(TWO, [1, 2], dense(FLAT, SURE), BUDGET))
    assert layer is not None
    assert layer.expand is not None
    below = [int(layer.parents[node - TWO.size]) for node in layer.expand.tolist()]
    assert below == [2, 2]


def test_the_law_that_was_drawn_from_counts_if_tokens_are_drawn() -> None:
    """At temperature 0.2 that is a surer one; a chain of argmaxes knows none."""
    cold = Sampling(temperature=0.2)
    step = growth(ROOT_ONLY, [0], dense(LAWS[0]), BUDGET)
    for policy, num_expanded in ((SampledChain(), 1), (Chain(), 0)):
        layer = EntropyStop(policy, 0.6).grow(replace(step, sampling=cold))
        assert layer is not None
        assert layer.expand is not None
        assert len(layer.expand) == num_expanded


def test_tokens_that_a_lookup_does_not_name_count_as_one() -> None:
    def found(prob: float) -> SparseDraft:
        one = torch.zeros(1, dtype=torch.int64)
        return SparseDraft(Children(one, one, torch.tensor([prob]).log(), one), 1)

    # H is 0.693 for a probability of a half, 0.325 for 0.9: 0.628 and 0.745.
    for prob, goes_on in ((0.9, True), (0.5, False)):
        layer = EntropyStop(Chain(), 0.7).grow(
            growth(ROOT_ONLY, [0], found(prob), BUDGET)
        )
        assert layer is not None
        assert layer.expand is not None
        assert (len(layer.expand) == 1) == goes_on


def test_a_search_does_not_return_to_earlier_nodes() -> None:
    """Of their laws nothing is known any more: they may be those that were unsure."""
    step = growth(TWO, [2], dense(SURE), BUDGET)
    alone, stopped = BestFirst(2).grow(step), EntropyStop(BestFirst(2), 0.0).grow(step)
    assert alone is not None
    assert alone.expand is not None
    assert alone.expand.tolist() == [1, 3, 4]
    assert stopped is not None
    assert stopped.expand is not None
    assert stopped.expand.tolist() == [3, 4]


def test_nothing_known_is_nothing_drafted() -> None:
    stop = EntropyStop(TopKTree(2))
    assert stop.grow(growth(ROOT_ONLY, [0], nothing(1), BUDGET)) is None


def test_all_else_is_the_wrapped_policys() -> None:
    policy = BestFirst(2, beam=3)
    stop = EntropyStop(policy)
    assert (stop.proposal, stop.max_children) == (policy.proposal, policy.max_children)
    assert stop.prunes
    assert stop.whole == policy.whole
    assert EntropyStop(SampledBestFirst()).ends_siblings_early


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("chain",), "policy.policy must be a draft policy, got 'chain'"),
        ((Chain(), 1.5), "policy.threshold must be in [0, 1], got 1.5"),
        ((Chain(), float("nan")), "policy.threshold must be in [0, 1], got nan"),
        ((Chain(), 0.5, 0.0), "policy.gamma must be > 0, got 0.0"),
        ((Chain(), 0.5, True), "policy.gamma must be a number, got True"),
    ],
)
def test_impossible_stops_are_refused(arguments, says: str) -> None:
    with pytest.raises(TreespecError) as error:
        EntropyStop(*arguments)
    assert says in str(error.value)


def test_a_planner_within_it_is_told_what_forwards_cost() -> None:
    """It once planned by assumed costs without a word, for nobody asked the wrapper."""
    costs = Costs.through({1: 1.0}, {1: 0.1})
    stop = EntropyStop(Planner())
    assert stop.wants_costs
    told = stop.with_costs(costs)
    assert told == EntropyStop(Planner(costs=costs))
    assert not told.wants_costs
    assert not EntropyStop(Chain()).wants_costs
