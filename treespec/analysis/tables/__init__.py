"""The numbers behind the charts: pure functions from ``Results`` to a frame each."""

from treespec.analysis.tables.acceptance import (
    acceptance_by_depth,
    acceptance_by_rank,
)
from treespec.analysis.tables.bound import rule_and_bound
from treespec.analysis.tables.calibration import (
    expected_and_realised,
    reliability,
)
from treespec.analysis.tables.costs import (
    cost_curve,
    cost_profile,
    measured_costs,
    roofline,
)
from treespec.analysis.tables.pay import (
    break_even,
    forecast_by_depth,
    forecast_speedup,
)
from treespec.analysis.tables.speed import (
    ALL,
    comparisons,
    latencies,
    speed_by_nodes,
    speedup_by_category,
)
from treespec.analysis.tables.time import (
    phases_of_generation,
    time_shares,
    tokens_over_time,
)

__all__ = [
    "ALL",
    "acceptance_by_depth",
    "acceptance_by_rank",
    "break_even",
    "comparisons",
    "cost_curve",
    "cost_profile",
    "expected_and_realised",
    "forecast_by_depth",
    "forecast_speedup",
    "latencies",
    "measured_costs",
    "phases_of_generation",
    "reliability",
    "roofline",
    "rule_and_bound",
    "speed_by_nodes",
    "speedup_by_category",
    "time_shares",
    "tokens_over_time",
]
