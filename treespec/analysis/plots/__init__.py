"""The charts: each from ``Results``, each a picture and an interactive twin.

Every one of them says in words what keeps it from showing anything: a run that failed,
prompts that nothing was drafted for, nodes that were not traced.
"""

from treespec.analysis.plots.acceptance import (
    acceptance_by_depth,
    acceptance_by_rank,
)
from treespec.analysis.plots.bound import rule_and_bound
from treespec.analysis.plots.calibration import expected_and_realised, reliability
from treespec.analysis.plots.costs import cost_curves, cost_profile, measured_costs
from treespec.analysis.plots.pay import break_even
from treespec.analysis.plots.speed import (
    latencies,
    speed_by_nodes,
    speedup_by_category,
)
from treespec.analysis.plots.time import generation, time_shares

__all__ = [
    "acceptance_by_depth",
    "acceptance_by_rank",
    "break_even",
    "cost_curves",
    "cost_profile",
    "expected_and_realised",
    "generation",
    "latencies",
    "measured_costs",
    "reliability",
    "rule_and_bound",
    "speed_by_nodes",
    "speedup_by_category",
    "time_shares",
]
