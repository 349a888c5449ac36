import pytest

from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    Greedy,
    SampleAndMatch,
)
from treespec.errors import IncompatiblePartsError
from treespec.sampling import Sampling
from treespec.types import ProposalKind

SAMPLED = Sampling(0.7)
SPECULATIVE_KINDS = (ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT)


def refusal(
    rule: AbstractAcceptanceRule,
    proposal: ProposalKind,
    max_children: int | None,
    sampling: Sampling = SAMPLED,
) -> str | None:
    try:
        rule.check(proposal, max_children, sampling, policy_name="MyPolicy")
    except IncompatiblePartsError as error:
        return str(error)
    return None


@pytest.mark.parametrize("proposal", ProposalKind)
@pytest.mark.parametrize("max_children", [1, 4, None])
def test_rules_that_ignore_the_draft_take_any_proposal(
    proposal: ProposalKind, max_children: int | None
) -> None:
    assert refusal(SampleAndMatch(), proposal, max_children) is None
    assert refusal(Greedy(), proposal, max_children, Sampling()) is None


@pytest.mark.parametrize("proposal", ProposalKind)
@pytest.mark.parametrize("max_children", [1, 4, None])
def test_chain_speculative_takes_one_sampled_child(
    proposal: ProposalKind, max_children: int | None
) -> None:
    legal = proposal in SPECULATIVE_KINDS and max_children == 1
    assert (refusal(ChainSpeculative(), proposal, max_children) is None) == legal


def test_a_wrong_proposal_is_refused_with_both_sides_and_the_way_out() -> None:
    message = refusal(ChainSpeculative(), ProposalKind.DETERMINISTIC, 1)
    assert message == (
        "policy MyPolicy proposes deterministic children, but acceptance "
        "ChainSpeculative is lossless for with_replacement or without_replacement "
        "only: it would score them by a law they were not drawn from and bias the "
        "output; use acceptance=sample_and_match, which takes any proposal, or a "
        "policy that proposes with_replacement or without_replacement"
    )


@pytest.mark.parametrize(("given", "told"), [(3, "up to 3"), (None, "any number of")])
def test_too_many_children_are_refused_with_both_sides_and_the_way_out(
    given: int | None, told: str
) -> None:
    message = refusal(ChainSpeculative(), ProposalKind.WITH_REPLACEMENT, given)
    assert message == (
        f"policy MyPolicy gives a node {told} with_replacement children, but "
        "acceptance ChainSpeculative is lossless for at most 1: the others would be "
        "scored by the wrong residual and bias the output; use "
        "acceptance=sample_and_match, which takes any tree, or a policy with at most "
        "1 per node such as policy=chain"
    )


def test_the_greedy_rule_is_refused_above_temperature_0() -> None:
    message = refusal(Greedy(), ProposalKind.DETERMINISTIC, 1)
    assert message == (
        "acceptance Greedy is right at temperature 0 only, but sampling.temperature is "
        "0.7: it would return the argmax instead of a sample; use "
        "acceptance=sample_and_match, or sampling.temperature=0"
    )


def test_every_rule_says_that_it_is_lossless_and_has_its_class_name() -> None:
    for rule in (Greedy(), SampleAndMatch(), ChainSpeculative()):
        assert rule.lossless
        assert rule.name == type(rule).__name__
        assert rule == type(rule)()


def test_a_rule_that_leaves_out_a_fact_cannot_be_built() -> None:
    class Unfinished(AbstractAcceptanceRule):
        lossless = True

    with pytest.raises(TypeError, match="greedy_only"):
        Unfinished()
