"""The conformance kit: does a plug-in keep its contract, and is it lossless?

A test of a new acceptance rule is three lines::

    from treespec.testing import check_acceptance_rule

    def test_my_rule():
        check_acceptance_rule(MyRule())

Models are toys and all randomness is enumerated, so that nothing here is statistics.
Enumerate laws of your own, with the toys, trees and sums of the kit::

    setting = Setting(random_model(5, 1), random_model(5, 2), proposal, widths=(3, 2))
    print(bias(MyRule(), setting, text=(0,), length=2))
"""

from treespec.testing.controller import ControllerReport, check_controller
from treespec.testing.decoder import LawReport, check_decoder
from treespec.testing.drafter import DrafterReport, check_drafter
from treespec.testing.failure import ConformanceError
from treespec.testing.laws import (
    Setting,
    autoregressive_law,
    bias,
    expected_accepted,
    output_law,
)
from treespec.testing.policies import PolicyReport, check_draft_policy
from treespec.testing.rule_report import NodeAcceptance, RuleReport
from treespec.testing.rules import check_acceptance_rule
from treespec.testing.toys import constant_model, random_model, table_model

__all__ = [
    "ConformanceError",
    "ControllerReport",
    "DrafterReport",
    "LawReport",
    "NodeAcceptance",
    "PolicyReport",
    "RuleReport",
    "Setting",
    "autoregressive_law",
    "bias",
    "check_acceptance_rule",
    "check_controller",
    "check_decoder",
    "check_draft_policy",
    "check_drafter",
    "constant_model",
    "expected_accepted",
    "output_law",
    "random_model",
    "table_model",
]
