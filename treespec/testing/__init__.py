"""The conformance kit: does a plug-in keep its contract, and is it lossless?"""

from treespec.testing.failure import ConformanceError
from treespec.testing.policies import PolicyReport, check_draft_policy
from treespec.testing.rule_report import NodeAcceptance, RuleReport
from treespec.testing.rules import check_acceptance_rule

__all__ = [
    "ConformanceError",
    "NodeAcceptance",
    "PolicyReport",
    "RuleReport",
    "check_acceptance_rule",
    "check_draft_policy",
]
