"""The conformance kit: does a plug-in keep its contract, and is it lossless?"""

from treespec.testing.controller import check_controller
from treespec.testing.decoder import LawReport, check_decoder
from treespec.testing.drafter import check_drafter
from treespec.testing.failure import ConformanceError
from treespec.testing.policies import PolicyReport, check_draft_policy
from treespec.testing.rule_report import NodeAcceptance, RuleReport
from treespec.testing.rules import check_acceptance_rule

__all__ = [
    "ConformanceError",
    "LawReport",
    "NodeAcceptance",
    "PolicyReport",
    "RuleReport",
    "check_acceptance_rule",
    "check_controller",
    "check_decoder",
    "check_draft_policy",
    "check_drafter",
]
