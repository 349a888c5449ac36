"""The kit passes every rule that ships, and none that is wrong."""

import re
from functools import cache
from inspect import isabstract

import pytest

from tests.testing.faulty_rules import (
    WITH,
    WITHOUT,
    AddsToEveryToken,
    AlwaysBonus,
    AsksForNothing,
    BreaksTiesToTheLast,
    CastsToFloat32,
    CertainIsEnough,
    DrawsTheTokenGlobally,
    DrawsTwice,
    Exits,
    FaultyRejection,
    ForAny,
    HalvesSingles,
    IgnoresNaN,
    IgnoresTopP,
    KeepsUniforms,
    LooksUpTheWrongRow,
    NeedsDraftProbs,
    Refuses,
    RefusesBannedTokens,
    ReturnsATensor,
    SeedsItsOwn,
    SetsTheDefaultDtype,
    SetsThreads,
    SkipsTheFirstNode,
    StatesNothing,
    TakesAnyNumber,
    TakesAnyTemperature,
    TakesEarlyEnds,
    TakesNodesForRows,
    TakesOneMore,
    TakesSiblingsForNeighbours,
    TurnsGradientsOff,
    UsesGlobalRandomness,
    UsesPythonsRandomness,
    WritesToDraftProbs,
    WritesToLogits,
    WrongBelowSecondSiblings,
)
from treespec import acceptance, testing
from treespec.acceptance import (
    AbstractAcceptanceRule,
    ChainSpeculative,
    Greedy,
    KSeq,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    TypicalAcceptance,
)
from treespec.testing import ConformanceError, RuleReport, check_acceptance_rule

SHIPPED = [
    kind()
    for kind in map(vars(acceptance).get, acceptance.__all__)
    if isinstance(kind, type)
    and issubclass(kind, AbstractAcceptanceRule)
    and not isabstract(kind)
]


@cache
def report(rule: AbstractAcceptanceRule) -> RuleReport:
    return check_acceptance_rule(rule)


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.name)
def test_every_rule_that_ships_passes(rule: AbstractAcceptanceRule) -> None:
    found = report(rule)
    assert found.num_cases > 30
    assert (found.largest_deviation < 1e-12) == rule.lossless
    assert rule.name in str(found)
    if rule.lossless:
        assert all(row.accepted <= row.optimum + 1e-12 for row in found.acceptance)


def test_a_report_says_how_often_children_are_accepted() -> None:
    found = report(RejectionWithoutReplacement())
    rows = {(row.proposal, row.num_children): row.accepted for row in found.acceptance}
    assert rows[WITHOUT, 2] == pytest.approx(143 / 210)
    assert rows[WITHOUT, 3] == pytest.approx(684 / 875)
    assert rows[WITH, 1] == pytest.approx(1 / 2)
    assert "without_replacement  2         0.6810    0.7345" in str(found)


def test_a_lossy_rule_is_measured_and_passes() -> None:
    found = report(TypicalAcceptance())
    assert not found.lossless
    assert found.largest_deviation > 0.1
    assert "siblings end early" not in str(found)
    assert "optimum of lossless rules" in str(found)


def test_a_report_says_how_far_it_looked() -> None:
    limits = "tried with up to 3 children per node, depth 3, 5 tokens"
    assert limits in str(report(RejectionWithReplacement()))
    assert "up to 1 child per node" in str(report(ChainSpeculative()))


def test_the_table_of_a_greedy_rule_is_at_temperature_0() -> None:
    assert "at temperature 0:" in str(report(Greedy()))
    assert "at temperature 0:" not in str(report(KSeq()))


def test_a_small_deviation_is_shown_in_digits_that_differ() -> None:
    """Two equal numbers said "probability 0.2000, wanted 0.2000"."""
    with pytest.raises(ConformanceError) as caught:
        check_acceptance_rule(CastsToFloat32())
    first, *_ = str(caught.value).splitlines()
    found = re.search(r"probability (\S+), wanted (\S+), deviation \S+e-\d\d$", first)
    assert found is not None
    assert found[1] != found[2]


def test_what_laws_are_summed_up_with_is_at_hand() -> None:
    models = testing.random_model(3, 1), testing.constant_model(0.5, 0.3, 0.2)
    setting = testing.Setting(*models, WITH, (2,))
    rule = RejectionWithReplacement()
    assert testing.bias(rule, setting, (0,), 2) < 1e-12
    assert sum(testing.output_law(rule, setting, (0,), 2).values()) == pytest.approx(1)
    assert 0 < testing.expected_accepted(rule, setting) < 1


class ForgetfulKSeq(KSeq):
    """Does not say that its scale is made for a fixed number of siblings."""

    __slots__ = ()
    takes_early_ends = True


def test_a_rule_must_say_whether_siblings_may_end_early() -> None:
    assert report(RejectionWithReplacement()).takes_early_ends
    assert not report(KSeq()).takes_early_ends
    with pytest.raises(ConformanceError, match="no further sibling after token 0 or 2"):
        check_acceptance_rule(ForgetfulKSeq())


# Rules with one mistake


def test_the_faulty_rejection_without_a_fault_passes() -> None:
    rule = FaultyRejection(WITHOUT, zeroes=True)
    assert check_acceptance_rule(rule).largest_deviation < 1e-12


BIASED = {
    "inverted ratio": (
        FaultyRejection(ratio=lambda p, q: q / p),
        "the ratio is inverted",
    ),
    "recovered from p": (
        FaultyRejection(recovers_from_target=True),
        "the recovered token was drawn from the target's law",
    ),
    "duplicate skipped": (
        FaultyRejection(skips_repeated=True),
        "a repeated token was skipped without the update",
    ),
    "zeroed as if without": (FaultyRejection(zeroes=True), "q was zeroed"),
    "unchanged as if with": (FaultyRejection(WITHOUT), "q was left unchanged"),
    "residual after zeroing": (
        FaultyRejection(WITHOUT, zeroes_first=True),
        "the residual was computed after q was zeroed",
    ),
    "final token from p": (
        FaultyRejection(WITHOUT, zeroes=True, recovers_from_target=True),
        "the recovered token was drawn from the target's law",
    ),
    "sorted": (
        FaultyRejection(WITHOUT, zeroes=True, sorts=True),
        "siblings were tested in the order of q",
    ),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_biased_rule_is_caught_and_its_mistake_named(name: str) -> None:
    """Public case 14, too: faults are known by their law on the literature's toy."""
    rule, mistake = BIASED[name]
    with pytest.raises(ConformanceError) as caught:
        check_acceptance_rule(rule)
    message = str(caught.value)
    assert "by a rounding error" not in message
    assert f"FaultyRejection is not lossless for {rule.kind} children" in message
    assert mistake in message


def test_the_message_shows_the_smallest_case() -> None:
    rule = FaultyRejection(WITHOUT)  # right for one child and for equal laws
    with pytest.raises(ConformanceError) as caught:
        check_acceptance_rule(rule)
    lines = str(caught.value).splitlines()
    assert "has probability" in lines[0]
    assert "children by depth [2]" in lines[1]
    tree = "\n".join(
        lines[lines.index("without_replacement children, in draw order:") :]
    )
    assert "q " in tree
    assert "p " in tree
    assert "|- " in tree
    assert "`- " in tree


def test_a_rule_that_scores_top_k_children_as_sampled_is_caught() -> None:
    rule = ForAny(RejectionWithReplacement())
    with pytest.raises(ConformanceError, match="ForAny"):
        check_acceptance_rule(rule)


BROKEN = [
    (WrongBelowSecondSiblings(), "is not lossless"),
    (LooksUpTheWrongRow(ChainSpeculative()), "is not lossless"),
    (TakesNodesForRows(RejectionWithReplacement()), "is not lossless"),
    (TakesNodesForRows(ChainSpeculative()), "is not lossless"),
    (TakesSiblingsForNeighbours(), "lead from the root down"),
    (BreaksTiesToTheLast(), "the likeliest tokens are tied"),
    (IgnoresTopP(), r"temperature 1, top-p 0\.7"),
    (AddsToEveryToken(), "is not lossless"),
    (HalvesSingles(), "random laws in float32"),
    (Exits(), "raised SystemExit: 0"),
    (SetsTheDefaultDtype(), r"dtype from torch\.float32 to torch\.float64"),
    (TurnsGradientsOff(), "grad mode from True to False"),
    (SetsThreads(), r"number of threads from \d+ to 7"),
    (KeepsUniforms(), "another question|same draws|changes its own object"),
    (UsesGlobalRandomness(), "global generator of torch"),
    (UsesPythonsRandomness(), "global generator of random"),
    (WritesToLogits(), "writes to target_logits"),
    (WritesToDraftProbs(), r"writes to tree\.draft_probs"),
    (AlwaysBonus(), "next_kind must be recovered"),
    (SkipsTheFirstNode(), "lead from the root down"),
    (ReturnsATensor(), "next_token must be an integer"),
    (IgnoresNaN(ChainSpeculative()), "must raise NumericalError"),
    (NeedsDraftProbs(), "NeedsDraftProbs raised TypeError: .* \\(faulty_rules.py:"),
    (DrawsTwice(), "says draws_like_autoregressive"),
    (DrawsTheTokenGlobally(), "draws from elsewhere than chance: .* of torch"),
    (SeedsItsOwn(ChainSpeculative()), "drawn from a generator of its own"),
    (CertainIsEnough(), "case: (the target is|both are) nearly certain"),
    (CastsToFloat32(), "keep the number type of the logits"),
    (
        IgnoresNaN(ChainSpeculative()),
        r"logits.amax\(\), is NaN or inf \(-inf is allowed",
    ),
    (
        RefusesBannedTokens(ChainSpeculative()),
        r"logits.amax\(\), because -inf is allow",
    ),
    (AsksForNothing(), r"raised AttributeError: .* \(faulty_rules\.py:\d+\)"),
    (StatesNothing(), r"raised LookupError: not decided \(faulty_rules\.py:\d+\)"),
    (Refuses(ChainSpeculative()), r"Refuses\.check must refuse"),
    (TakesOneMore(ChainSpeculative()), "refuse with_replacement children, 2 per node"),
    (TakesAnyNumber(ChainSpeculative()), "refuse with_.* children, any number"),
    (TakesAnyTemperature(), r"refuse .* at temperature 0\.5"),
    (TakesEarlyEnds(), "refuse .* that may end early"),
]


@pytest.mark.parametrize(("rule", "words"), BROKEN, ids=lambda x: type(x).__name__)
def test_a_broken_rule_is_caught_and_its_mistake_told(
    rule: AbstractAcceptanceRule, words: str
) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_acceptance_rule(rule)
