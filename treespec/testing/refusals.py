"""Does a rule refuse what its facts exclude, and nothing else?"""

from __future__ import annotations

from itertools import product

from treespec.acceptance import AbstractAcceptanceRule
from treespec.errors import IncompatiblePartsError
from treespec.sampling import Sampling
from treespec.testing.failure import ConformanceError
from treespec.types import ProposalKind

SAMPLINGS = Sampling(), Sampling(temperature=0.5), Sampling(temperature=1.0)


def check_refusals(rule: AbstractAcceptanceRule) -> None:
    """Check a rule's ``check`` against its facts, in every combination.

    Raises:
        ConformanceError: They differ.
    """
    for kind in ProposalKind:
        for max_children, ends_early, sampling in product(
            _counts(rule.proposals.get(kind)), (False, True), SAMPLINGS
        ):
            legal = (
                kind in rule.proposals
                and _fits(max_children, rule.proposals[kind])
                and (rule.takes_early_ends or not ends_early)
                and (sampling.greedy or not rule.greedy_only)
            )
            if legal != _takes(rule, kind, max_children, ends_early, sampling):
                number = "any number" if max_children is None else max_children
                end = "that may end early" if ends_early else "fixed before the draw"
                raise ConformanceError(
                    f"{rule.name}.check must {'take' if legal else 'refuse'} {kind} "
                    f"children, {number} per node, {end}, at temperature "
                    f"{sampling.temperature:g}, as its facts say; do not override it"
                )


def _counts(most: int | None) -> tuple[int | None, ...]:
    """Return numbers of children on both sides of a rule's bound."""
    return (1, 4, None) if most is None else (1, most, most + 1, None)


def _fits(max_children: int | None, most: int | None) -> bool:
    return most is None or (max_children is not None and max_children <= most)


def _takes(
    rule: AbstractAcceptanceRule,
    kind: ProposalKind,
    max_children: int | None,
    ends_early: bool,
    sampling: Sampling,
) -> bool:
    try:
        rule.check(kind, max_children, ends_early, sampling, "Policy")
    except IncompatiblePartsError:
        return False
    return True
