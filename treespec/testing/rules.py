"""``check_acceptance_rule``: does a rule keep its contract, and is it lossless?"""

from __future__ import annotations

from dataclasses import replace

from treespec.acceptance import AbstractAcceptanceRule
from treespec.acceptance.optimum import optimal_acceptance
from treespec.testing.checked_rule import CheckedRule
from treespec.testing.failure import reported
from treespec.testing.laws import Setting, expected_accepted, rounds
from treespec.testing.purity import leaves_alone
from treespec.testing.rule_cases import (
    EXACT,
    GREEDY,
    PAIRS,
    VECTORS,
    most_tried,
    rule_cases,
)
from treespec.testing.rule_contract import (
    ELSEWHERE,
    check_facts,
    check_numbers,
    check_purity,
)
from treespec.testing.rule_laws import check_law, measure
from treespec.testing.rule_report import NodeAcceptance, RuleReport
from treespec.testing.rule_seeds import check_draws
from treespec.types import ProposalKind


def check_acceptance_rule(rule: AbstractAcceptanceRule) -> RuleReport:
    """Check everything that an acceptance rule promises, for every legal proposal.

    The law of the text is compared with the target's by exact enumeration of all draws,
    to 1e-12, or 1e-6 on a toy in float32; what the target never writes must never be
    written. The toys: vocabularies of 2 to 5 tokens, up to 3 children per node, depth
    up to 3, cut branches, shapes that depend on the tokens drawn, nodes and draft laws
    in two legal orders; random laws that differ after every text, and laws that are
    equal, disjoint, certain, nearly so, tied, or of few tokens; temperatures 0 and 1,
    top-k alone, top-p alone, and both with a repetition penalty; one round, and three
    tokens over several rounds. A rule that says it is lossy is measured instead. Takes
    seconds.

    Args:
        rule: The rule, as a decoder would get it.

    Returns:
        What was found out; ``print`` it.

    Raises:
        ConformanceError: The rule breaks a promise. The message shows the smallest case
            in which it does.
    """
    with reported(rule):
        check_facts(rule)
        with leaves_alone(rule.name, rule, ELSEWHERE):
            return _checked(rule)


def _checked(rule: AbstractAcceptanceRule) -> RuleReport:
    checked = CheckedRule(rule)
    check_purity(checked)
    check_draws(checked)
    cases = rule_cases(rule)
    judge = check_law if rule.lossless else measure
    deviations = {case: judge(checked, case) for case in cases}
    check_numbers(checked)
    return RuleReport(
        rule=rule.name,
        lossless=rule.lossless,
        greedy_only=rule.greedy_only,
        num_cases=len(cases),
        most_children=max(max(case.setting.widths, default=0) for case in cases),
        most_depth=max(len(case.setting.widths) for case in cases),
        most_tokens=max(case.setting.vocab_size for case in cases),
        largest_deviation=max(
            deviations[case] for case in cases if case.tolerance == EXACT
        ),
        accepts_equal_laws=_accepts_equal_laws(checked),
        takes_early_ends=rule.takes_early_ends,
        acceptance=_acceptance(checked),
    )


def _fit(rule: AbstractAcceptanceRule, setting: Setting) -> Setting:
    """Return a setting at a temperature that the rule takes."""
    return replace(setting, sampling=GREEDY) if rule.greedy_only else setting


def _accepts_equal_laws(rule: AbstractAcceptanceRule) -> bool:
    models = PAIRS["the draft is the target"]
    return all(
        outcome.acceptance.node_ids == (1,)
        for proposal, most in rule.proposals.items()
        if proposal is not ProposalKind.DETERMINISTIC
        for width in range(1, most_tried(proposal, most) + 1)
        for _, outcome in rounds(
            rule, _fit(rule, Setting(*models, proposal, (width,))), (0,)
        )
    )


def _acceptance(rule: AbstractAcceptanceRule) -> tuple[NodeAcceptance, ...]:
    settings = [
        _fit(rule, Setting(*VECTORS, proposal, (width,)))
        for proposal, most in rule.proposals.items()
        for width in range(1, most_tried(proposal, most) + 1)
    ]
    return tuple(
        NodeAcceptance(
            proposal=setting.proposal,
            num_children=setting.widths[0],
            accepted=expected_accepted(rule, setting),
            optimum=_optimum(setting),
        )
        for setting in settings
    )


def _optimum(setting: Setting) -> float:
    """Return the best acceptance of a root's children."""
    text, num_children = (0,), setting.widths[0]
    target_probs = setting.sampling.probs(setting.target(text))
    draft_probs = setting.sampling.probs(setting.draft(text))
    if setting.proposal is ProposalKind.DETERMINISTIC:
        return float(target_probs[draft_probs.topk(num_children).indices].sum())
    return optimal_acceptance(target_probs, draft_probs, num_children, setting.proposal)
