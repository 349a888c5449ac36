"""How deep acceptance reaches, and how far down the list of siblings."""

from __future__ import annotations

import pandas as pd

from treespec.analysis.results import Results
from treespec.analysis.tables.frames import (
    by_run,
    exploded,
    frame_with,
    rate_columns,
    speculative_steps,
)


def acceptance_by_depth(results: Results) -> pd.DataFrame:
    """Return how often a node was accepted at depth 1, 2, ... with Wilson intervals.

    ``rate`` is of all steps, as ``acceptance_rate_by_depth`` in ``summary.json``.
    ``conditional_rate`` is of the steps whose accepted path arrived one above at a node
    with children: the conditional acceptance by position of vLLM and SPEED-Bench
    (2604.09557).

    Returns:
        ``run``, ``depth``, ``num_accepted``, ``num_steps``, ``rate``, ``low``,
        ``high``, ``num_arrived``, ``conditional_rate``, ``conditional_low``,
        ``conditional_high``.
    """
    rows = []
    for run, steps in by_run(speculative_steps(results), results):
        accepted = steps["num_accepted"].to_numpy(dtype=int)
        has_nodes = steps["num_nodes"].to_numpy(dtype=int) > 0
        evaluated = accepted + (
            has_nodes & (steps["next_kind"] == "recovered").to_numpy()
        )
        for depth in range(1, int(steps["depth"].max()) + 1):
            num_hits = int((accepted >= depth).sum())
            num_arrived = int((evaluated >= depth).sum())
            rows.append(
                {
                    "run": run,
                    "depth": depth,
                    "num_accepted": num_hits,
                    "num_steps": len(steps),
                    **rate_columns(num_hits, len(steps)),
                    "num_arrived": num_arrived,
                    **rate_columns(num_hits, num_arrived, "conditional_"),
                }
            )
    shown = ("rate", "low", "high")
    return frame_with(
        rows,
        [
            *("run", "depth", "num_accepted", "num_steps", *shown, "num_arrived"),
            *(f"conditional_{name}" for name in shown),
        ],
    )


def acceptance_by_rank(results: Results) -> pd.DataFrame:
    """Return how often the first, second, ... sibling was the accepted one.

    Of the nodes of that rank that were judged: those whose parent the committed text
    went through. Rank 0 is the one that was drafted first.

    Returns:
        ``run``, ``rank``, ``num_accepted``, ``num_judged``, ``rate``, ``low``,
        ``high``.
    """
    judged = exploded(speculative_steps(results), ["judged_ranks", "judged_accepted"])
    rows = []
    for run, nodes in by_run(judged, results):
        for rank, accepted in nodes.groupby("judged_ranks")["judged_accepted"]:
            num_hits, num_judged = int(accepted.sum()), len(accepted)
            counts = {"num_accepted": num_hits, "num_judged": num_judged}
            rates = rate_columns(num_hits, num_judged)
            rows.append({"run": run, "rank": int(str(rank)), **counts, **rates})
    columns = ("run", "rank", "num_accepted", "num_judged", "rate", "low", "high")
    return frame_with(rows, columns)
