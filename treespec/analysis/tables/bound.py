"""How much of what any acceptance rule could accept the rule of a run accepted."""

from __future__ import annotations

import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import (
    by_run,
    frame_with,
    mean_columns,
    rate_columns,
)

_STEP = ["prompt_idx", "step"]


def rule_and_bound(results: Results) -> pd.DataFrame:
    """Return how often a child was accepted, and how often one could be, by depth.

    Counted at the nodes that have children and that the committed text went through,
    as ``node_acceptance`` and ``optimal_node_acceptance`` in ``summary.json``; depth is
    that of the children. Rules that weigh whole paths may exceed the bound below depth
    1, as they decide a node with the fate of others in view. Needs ``trace=nodes``.

    Returns:
        ``run``, ``depth``, ``num_evaluated``, ``rate``, ``low``, ``high`` (the rule),
        ``optimal``, ``optimal_low``, ``optimal_high``, ``gap``.
    """
    nodes = results.nodes[results.nodes["mode"] == "speculative"]
    evaluated = nodes[nodes["optimal_acceptance"].notna()]
    rows = []
    for run, of_run in by_run(evaluated, results):
        families = of_run.assign(is_accepted=of_run["verdict"] == "accepted").groupby(
            [*_STEP, "parent"], sort=False
        )
        per_family = families.agg(
            depth=("depth", "first"),
            is_accepted=("is_accepted", "any"),
            optimal=("optimal_acceptance", "first"),
        )
        for depth, family in per_family.groupby("depth"):
            rates = rate_columns(int(family["is_accepted"].sum()), len(family))
            optimal = mean_columns(family["optimal"].to_numpy(dtype=float))
            rows.append(
                {
                    "run": run,
                    "depth": int(str(depth)),
                    "num_evaluated": len(family),
                    **rates,
                    "optimal": optimal["mean"],
                    "optimal_low": optimal["low"],
                    "optimal_high": optimal["high"],
                    "gap": optimal["mean"] - rates["rate"],
                }
            )
    return frame_with(
        rows,
        [
            *("run", "depth", "num_evaluated", "rate", "low", "high"),
            *("optimal", "optimal_low", "optimal_high", "gap"),
        ],
    )
