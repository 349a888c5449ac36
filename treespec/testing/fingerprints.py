"""Which known mistake a wrong law looks like."""

from __future__ import annotations

from treespec.acceptance import AbstractAcceptanceRule
from treespec.testing.laws import Setting, distance, output_law, rounds
from treespec.testing.rule_cases import VECTORS
from treespec.types import ProposalKind

ROUNDED = 1e-6
"""Deviations below this are what float32 makes of a law."""
CLOSE = 6e-4
"""The laws below are rounded to three places."""

LESS_LIKELY = 2
"""A token of the vectors with 0 < p < q."""

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
FINGERPRINTS = (
    (
        1,
        {WITH, WITHOUT},
        (0.35, 0.35, 0.3, 0.0),
        "the recovered token was drawn from the target's law instead of the residual",
    ),
    (
        1,
        {WITH, WITHOUT},
        (0.137, 0.163, 0.3, 0.4),
        "the ratio is inverted: accept with p/q, not q/p",
    ),
    (
        2,
        {WITH},
        (0.462, 0.338, 0.2, 0.0),
        "a repeated token was skipped without the update of the residual",
    ),
    (
        2,
        {WITH},
        (0.538, 0.262, 0.2, 0.0),
        "q was zeroed at the rejected token, as if drawn without replacement",
    ),
    (
        2,
        {WITHOUT},
        (46 / 105, 38 / 105, 0.2, 0.0),
        "q was left unchanged after a rejection, as if drawn with replacement",
    ),
    (
        2,
        {WITHOUT},
        (0.554, 0.203, 0.243, 0.0),
        "the residual was computed after q was zeroed; compute it before",
    ),
    (
        2,
        {WITHOUT},
        (0.340, 0.396, 0.264, 0.0),
        "the final token was drawn from the target's law instead of the residual",
    ),
    (
        2,
        {WITHOUT},
        (0.617, 0.225, 0.158, 0.0),
        "siblings were tested in the order of q instead of draw order",
    ),
)
"""Children per node, kinds, the law of the next token on the vectors, the mistake."""


def hint(
    rule: AbstractAcceptanceRule, proposal: ProposalKind, deviation: float
) -> str | None:
    """Return the known mistake that a wrong law looks like.

    Args:
        rule: The rule.
        proposal: How the children of the wrong case are drawn.
        deviation: How far that law is off.
    """
    if deviation < ROUNDED:
        return (
            "laws were cast to float32, or something tiny was added: keep the number "
            "type of the logits, and add nothing"
        )
    return _known(rule, proposal) or _not_drawn(rule, proposal)


def _known(rule: AbstractAcceptanceRule, proposal: ProposalKind) -> str | None:
    """Return the mistake whose law on the vectors the rule has."""
    for num_children, kinds, law, mistake in FINGERPRINTS:
        most = rule.proposals[proposal]
        if proposal not in kinds or (most is not None and most < num_children):
            continue
        setting = Setting(*VECTORS, proposal, (num_children,))
        found = output_law(rule, setting, (0,), 1)
        if distance(found, {(token,): p for token, p in enumerate(law)}) < CLOSE:
            return mistake
    return None


def _not_drawn(rule: AbstractAcceptanceRule, proposal: ProposalKind) -> str | None:
    """Return whether a child with p < q is accepted always or never."""
    if proposal not in {WITH, WITHOUT}:
        return None
    weights = {True: 0.0, False: 0.0}
    for weight, outcome in rounds(rule, Setting(*VECTORS, proposal, (1,)), (0,)):
        if outcome.tree.tokens.tolist()[1:] == [LESS_LIKELY]:
            weights[bool(outcome.acceptance.node_ids)] += weight
    if all(weights.values()):
        return None
    return (
        "acceptance is not drawn from chance: it is certain, or drawn from a generator "
        "of its own"
    )
