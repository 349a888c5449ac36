import re

import pytest

import treespec.acceptance
from treespec.acceptance import (
    AbstractAcceptanceRule,
    BlockVerification,
    ChainSpeculative,
    Greedy,
    GreedyDraftTransport,
    KSeq,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    SpecHub,
    TraversalVerification,
    TypicalAcceptance,
)
from treespec.acceptance.base import NEED_A_FIXED_NUMBER, RULES_FOR
from treespec.errors import IncompatiblePartsError
from treespec.sampling import Sampling
from treespec.types import ProposalKind

SAMPLED = Sampling(0.7)
DETERMINISTIC = ProposalKind.DETERMINISTIC
WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
PLUS, PAIR = ProposalKind.GREEDY_PLUS_RANDOM, ProposalKind.ARGMAX_PAIR

ANY = dict.fromkeys(ProposalKind, (1, 2, 3, None))
LEGALITY = {
    Greedy(): ANY,
    SampleAndMatch(): ANY,
    TypicalAcceptance(): ANY,
    ChainSpeculative(): {WITH: (1,), WITHOUT: (1,)},
    RejectionWithReplacement(): {WITH: (1, 2, 3, None), WITHOUT: (1,)},
    RejectionWithoutReplacement(): {WITH: (1,), WITHOUT: (1, 2, 3, None)},
    KSeq(): {WITH: (1, 2, 3, None)},
    SpecHub(): {PAIR: (1, 2)},
    GreedyDraftTransport(): {PLUS: (1, 2, 3, None), PAIR: (1, 2)},
    BlockVerification(): {WITH: (1,), WITHOUT: (1,)},
    TraversalVerification(): {WITH: (1, 2, 3, None), WITHOUT: (1, 2, 3, None)},
}
"""Which numbers of children of which kind a rule is lossless for."""


def refusal(
    rule: AbstractAcceptanceRule,
    proposal: ProposalKind,
    max_children: int | None,
    sampling: Sampling = SAMPLED,
) -> str | None:
    try:
        rule.check(proposal, max_children, False, sampling, policy_name="MyPolicy")
    except IncompatiblePartsError as error:
        return str(error)
    return None


@pytest.mark.parametrize("rule", LEGALITY, ids=lambda rule: rule.name)
def test_a_rule_takes_what_it_is_lossless_for_and_refuses_the_rest(
    rule: AbstractAcceptanceRule,
) -> None:
    sampling = Sampling() if rule.greedy_only else SAMPLED
    for kind in ProposalKind:
        for max_children in (1, 2, 3, None):
            legal = max_children in LEGALITY[rule].get(kind, ())
            assert (refusal(rule, kind, max_children, sampling) is None) == legal


def test_the_table_has_every_rule_of_the_package() -> None:
    exported = [getattr(treespec.acceptance, x) for x in treespec.acceptance.__all__]
    rules = {
        part.__name__
        for part in exported
        if isinstance(part, type) and issubclass(part, AbstractAcceptanceRule)
    }
    abstract = {"AbstractAcceptanceRule", "AbstractNodewiseRule"}
    assert {rule.name for rule in LEGALITY} == rules - abstract


def test_messages_name_the_rules_that_take_a_kind_of_more_than_one_child() -> None:
    for kind, options in RULES_FOR.items():
        takers = {
            re.sub("(?<!^)(?=[A-Z])", "_", rule.name).lower()
            for rule, legal in LEGALITY.items()
            if 2 in legal.get(kind, ()) and rule.lossless
        }
        assert set(options) == takers - {"greedy", "sample_and_match"}
    for rule in LEGALITY:
        option = re.sub("(?<!^)(?=[A-Z])", "_", rule.name).lower()
        assert (option in NEED_A_FIXED_NUMBER) == (not rule.takes_early_ends)


def test_no_rule_is_named_that_would_refuse_the_policy_as_well() -> None:
    with pytest.raises(IncompatiblePartsError) as refused:
        ChainSpeculative().check(WITH, 2, True, SAMPLED, "MyPolicy")
    assert "rejection_with_replacement, traversal_verification" in str(refused.value)
    assert "k_seq" not in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "proposal", "way_out"),
    [
        (
            ChainSpeculative(),
            DETERMINISTIC,
            "is lossless for with_replacement or without_replacement only: it would "
            "score them by a law they were not drawn from and bias the output; use "
            "acceptance=sample_and_match, which takes any tree, or a policy with one "
            "child per node: policy=sampled_chain",
        ),
        (
            SpecHub(),
            WITHOUT,
            "is lossless for argmax_pair only: it would score them by a law they were "
            "not drawn from and bias the output; use acceptance=sample_and_match, "
            "which takes any tree, or one of rejection_without_replacement, "
            "traversal_verification, or a policy that fits: policy=sampled_tree "
            "policy.proposal=argmax_pair",
        ),
        (
            RejectionWithoutReplacement(),
            PLUS,
            "is lossless for with_replacement or without_replacement only: it would "
            "score them by a law they were not drawn from and bias the output; use "
            "acceptance=sample_and_match, which takes any tree, or "
            "greedy_draft_transport, or a policy that fits: policy=sampled_tree "
            "policy.proposal=without_replacement",
        ),
    ],
)
def test_a_wrong_proposal_is_refused_with_both_sides_and_the_way_out(
    rule: AbstractAcceptanceRule, proposal: ProposalKind, way_out: str
) -> None:
    assert refusal(rule, proposal, 1) == (
        f"policy MyPolicy proposes {proposal} children, but acceptance {rule.name} "
        + way_out
    )


@pytest.mark.parametrize(("given", "told"), [(3, "up to 3"), (None, "any number of")])
def test_too_many_children_are_refused_with_both_sides_and_the_way_out(
    given: int | None, told: str
) -> None:
    message = refusal(ChainSpeculative(), WITH, given)
    assert message == (
        f"policy MyPolicy gives a node {told} with_replacement children, but "
        "acceptance ChainSpeculative is lossless for at most 1: the others would be "
        "scored by the wrong residual and bias the output; use "
        "acceptance=sample_and_match, which takes any tree, or one of "
        "rejection_with_replacement, k_seq, traversal_verification, or a policy with "
        "one child per node: policy=sampled_chain"
    )


def test_a_rule_that_counts_on_a_fixed_number_of_siblings_refuses_early_ends() -> None:
    """k-SEQ is biased by .05 if a node's next sibling hangs on the ones before."""
    with pytest.raises(IncompatiblePartsError) as refused:
        KSeq().check(WITH, 2, True, SAMPLED, "MyPolicy")
    assert str(refused.value) == (
        "policy MyPolicy decides by the siblings drawn so far whether their parent "
        "gets one more, but acceptance KSeq is lossless for a number that was fixed "
        "before; use acceptance=sample_and_match, which takes any tree, or one of "
        "rejection_with_replacement, traversal_verification"
    )
    for rule in (RejectionWithReplacement(), TraversalVerification()):
        rule.check(WITH, 2, True, SAMPLED, "MyPolicy")


def test_the_greedy_rule_is_refused_above_temperature_0() -> None:
    message = refusal(Greedy(), ProposalKind.DETERMINISTIC, 1)
    assert message == (
        "acceptance Greedy is right at temperature 0 only, but sampling.temperature is "
        "0.7: it would return the argmax instead of a sample; use "
        "acceptance=sample_and_match, or sampling.temperature=0"
    )


def test_all_rules_but_one_are_lossless_and_have_their_class_name() -> None:
    for rule in LEGALITY:
        assert rule.lossless == (rule.name != "TypicalAcceptance")
        assert rule.name == type(rule).__name__
        assert rule == type(rule)()


def test_a_rule_that_leaves_out_a_fact_cannot_be_built() -> None:
    class Unfinished(AbstractAcceptanceRule):
        lossless = True

    with pytest.raises(TypeError, match="greedy_only"):
        Unfinished()
