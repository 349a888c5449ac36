"""Sampled proposals from several drafters leave the target's law as it is, exactly."""

import pytest

from tests.drafters.sessions import Drafting, toy_draft
from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    TraversalVerification,
)
from treespec.drafters import AbstractDrafter, Cascade, Marginals, Merge, PromptLookup
from treespec.policies import AbstractDraftPolicy, SampledChain, SampledTree, TopKTree
from treespec.sampling import Sampling
from treespec.testing.laws import (
    autoregressive_law,
    bias,
    continued_law,
    distance,
    rounds,
)
from treespec.testing.toys import random_model
from treespec.types import Budget, ProposalKind

V = 3
TEXT = (0, 1, 2, 0, 1, 2, 1, 0, 1)
"""The lookup is sure of a 2 after it; then it wavers, and mostly it has no guess."""
ROUNDED = 1e-6
"""A lookup's law is float32."""
LOOKUP, MODEL = PromptLookup(2, 2), toy_draft(V, 7)
DRAFTERS = {
    "cascade": Cascade((LOOKUP, MODEL), (0.4,)),
    "merge": Merge((LOOKUP, MODEL), (3, 2)),
    "marginals": Marginals(MODEL),
    "marginals-of-lookup": Marginals(PromptLookup(1, 1)),
    "nested": Merge((Cascade((LOOKUP, Marginals(MODEL)), (0.4,)), MODEL)),
}
WITH = ProposalKind.WITH_REPLACEMENT
PAIRS: list[tuple[AbstractDraftPolicy, AbstractAcceptanceRule]] = [
    (SampledChain(), ChainSpeculative()),
    (SampledTree(2), RejectionWithoutReplacement()),
    (SampledTree(2), TraversalVerification()),
    (SampledTree(2, WITH), RejectionWithReplacement()),
    (TopKTree(2), SampleAndMatch()),
]


def setting(
    drafter: AbstractDrafter, policy: AbstractDraftPolicy, temperature: float = 1.0
) -> Drafting:
    model = random_model(V, seed=5)
    return Drafting(
        target=model,
        draft=model,
        proposal=policy.proposal,
        widths=(),
        sampling=Sampling(temperature),
        drafter=drafter,
        policy=policy,
        budget=Budget(2, 2, 4),
    )


@pytest.mark.parametrize(
    ("name", "policy", "rule"),
    [
        (name, *pair)
        for name in DRAFTERS
        for pair in (PAIRS if name in {"cascade", "merge"} else PAIRS[:3])
    ],
    ids=repr,
)
def test_the_law_of_the_text_is_the_targets(
    name: str, policy: AbstractDraftPolicy, rule: AbstractAcceptanceRule
) -> None:
    case = setting(DRAFTERS[name], policy)
    law = continued_law(case, TEXT, rounds(rule, case, TEXT), 3)
    assert distance(law, autoregressive_law(case, TEXT, 3)) < ROUNDED


def test_the_law_is_the_targets_over_many_rounds_and_at_another_temperature() -> None:
    case = setting(DRAFTERS["cascade"], SampledTree(2), temperature=0.6)
    assert bias(RejectionWithoutReplacement(), case, TEXT, 2) < ROUNDED


@pytest.mark.parametrize("name", ["cascade", "merge"])
def test_both_drafters_have_a_part_in_what_is_checked(name: str) -> None:
    played = list(
        rounds(ChainSpeculative(), setting(DRAFTERS[name], SampledChain()), TEXT)
    )
    sources = {tuple(one.tree.sources[1:].tolist()) for _, one in played}
    assert {source for chain in sources for source in chain} == {0, 1}
    kinds = {one.acceptance.next_kind for _, one in played}
    assert kinds == {"recovered", "bonus"}
