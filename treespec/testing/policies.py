"""``check_draft_policy``: does a policy keep its contract, and draw as it says?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from treespec.policies import AbstractDraftPolicy
from treespec.testing.enumeration import outcomes
from treespec.testing.failure import reported
from treespec.testing.policy_cases import contract_cases, law_cases
from treespec.testing.policy_contract import check_facts, check_layers, check_requests
from treespec.testing.policy_laws import check_ends, check_output, check_siblings
from treespec.testing.purity import leaves_alone
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """A draft policy's results; ``str`` makes them a few lines.

    Attributes:
        policy: The policy's name.
        proposal: How it says that it draws children.
        max_children: Most children of one node; ``None`` if there is no limit.
        num_cases: Drafts and budgets whose trees were looked at.
        num_trees: Trees whose law was enumerated.
        largest_deviation: Largest error of the probability of a child or of a text.
    """

    policy: str
    proposal: ProposalKind
    max_children: int | None
    num_cases: int
    num_trees: int
    largest_deviation: float

    def __str__(self) -> str:
        most = "any number of" if self.max_children is None else self.max_children
        return (
            f"{self.policy}: up to {most} {self.proposal} children a node, as it says\n"
            f"{self.num_cases} drafts and budgets, {self.num_trees} trees enumerated, "
            f"largest deviation {self.largest_deviation:.1e}"
        )


def check_draft_policy(policy: AbstractDraftPolicy) -> PolicyReport:
    """Check everything that a draft policy promises.

    Every layer is looked at on many budgets and drafts, some of which know nothing of
    some nodes. For sampled children every tree is enumerated on vocabularies of 2 to 4
    tokens, depth up to 3: given the earlier siblings, the next one must follow the law
    that the declared kind prescribes, and a lossless rule for that kind must write the
    target's law exactly. Takes seconds.

    Args:
        policy: The policy, as a decoder would get it.

    Returns:
        What was found out; ``print`` it.

    Raises:
        ConformanceError: The policy breaks a promise. The message shows the smallest
            case in which it does.
    """
    with reported(policy):
        check_facts(policy)
        elsewhere = "draws from elsewhere than growth.chance"
        with leaves_alone(type(policy).__name__, policy, elsewhere):
            return _checked(policy)


def _checked(policy: AbstractDraftPolicy) -> PolicyReport:
    cases = contract_cases()
    for case in cases:
        check_layers(policy, case, seed=0)
        if case.known is None:
            check_requests(policy, case)
    num_trees, largest = 0, 0.0
    for case in law_cases():
        grown = list(outcomes(partial(case.grown, policy)))
        num_trees += len(grown)
        if policy.proposal is not ProposalKind.DETERMINISTIC:
            largest = max(largest, check_siblings(policy, case, grown))
            check_ends(policy, case, grown)
        largest = max(largest, check_output(policy, case, grown))
    return PolicyReport(
        policy=type(policy).__name__,
        proposal=policy.proposal,
        max_children=policy.max_children,
        num_cases=len(cases),
        num_trees=num_trees,
        largest_deviation=largest,
    )
