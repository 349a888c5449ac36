"""Where acceptance dies: by depth and by rank."""

from __future__ import annotations

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Panel
from treespec.analysis.plots.shared import (
    about_prompts,
    chart,
    counted,
    kinds,
    nothing,
    rates,
)
from treespec.analysis.results import Results

_SHARE = (0.0, 1.03)  # room for a marker at 1


def acceptance_by_depth(results: Results) -> Chart:
    """Return how deep acceptance reaches: of all steps, and of those that got there.

    With 95% Wilson intervals; see ``tables.acceptance_by_depth``.
    """
    frame = tables.acceptance_by_depth(results)
    title = "Acceptance by depth"
    if frame.empty:
        return nothing(title, results, "No step drafted anything.", frame)
    shown = list(kinds(results, frame))
    num_steps = int(frame.groupby("run")["num_steps"].first().sum())
    x = "Depth in the tree (tokens)"
    panels = [
        Panel(
            x_label=x,
            y_label="Accepted, of all steps\n(share, 95% interval)",
            marks=tuple(rates(kind, "depth") for kind in shown),
            y_range=_SHARE,
            has_whole_x=True,
            height=0.8,
        ),
        Panel(
            x_label=x,
            y_label="Accepted, of steps that\narrived above (share)",
            marks=tuple(rates(kind, "depth", prefix="conditional_") for kind in shown),
            y_range=_SHARE,
            has_whole_x=True,
            height=0.8,
        ),
    ]
    n = f"{counted(num_steps, 'step')}, {about_prompts(results, frame)}"
    return chart(f"{title} (n = {n})", panels, results, frame)


def acceptance_by_rank(results: Results) -> Chart:
    """Return how often each sibling was the accepted one, with 95% Wilson intervals."""
    frame = tables.acceptance_by_rank(results)
    title = "Acceptance by rank among siblings"
    if frame.empty:
        return nothing(title, results, "No drafted node was judged.", frame)
    panel = Panel(
        x_label="Rank among siblings (0: drafted first)",
        y_label="Accepted, of judged nodes\n(share, 95% interval)",
        marks=tuple(rates(kind, "rank") for kind in kinds(results, frame)),
        y_range=(0.0, min(1.0, 1.1 * float(frame["high"].max()))),
        has_whole_x=True,
    )
    num_judged = int(frame["num_judged"].sum())
    n = f"{counted(num_judged, 'judged node')}, {about_prompts(results, frame)}"
    return chart(f"{title} (n = {n})", [panel], results, frame)
