"""The conformance kit: does a plug-in keep its contract, and is it lossless?

A test of a new acceptance rule is three lines::

    from treespec.testing import check_acceptance_rule

    def test_my_rule():
        check_acceptance_rule(MyRule())

Models are toys and all randomness is enumerated, so that nothing here is statistics.
"""

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
