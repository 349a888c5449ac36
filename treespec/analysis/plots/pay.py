"""When a tree pays for itself."""

from __future__ import annotations

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Panel, Points
from treespec.analysis.look import NUM_STYLES
from treespec.analysis.plots.shared import (
    about_prompts,
    chart,
    counted,
    floats,
    kinds,
    nothing,
    why_untimed,
)
from treespec.analysis.results import Results


def break_even(results: Results) -> Chart:
    """Return kept drafts by size of the tree, next to how many would pay for it."""
    frame = tables.break_even(results)
    title = "Does a tree pay?"
    if frame.empty or frame["break_even"].isna().all():
        why = why_untimed(results, "No step was timed on both sides.")
        return nothing(title, results, why, frame)
    marks: list[Points] = []
    for kind in list(kinds(results, frame))[:NUM_STYLES]:
        rows = kind.rows
        x = floats(rows["num_nodes"])
        kept = Points(
            name=f"{kind.label}: kept",
            x=x,
            y=floats(rows["accepted"]),
            low=floats(rows["low"]),
            high=floats(rows["high"]),
            join="none",
            style=kind.style,
            dodge=kind.dodge,
            labels=tuple(counted(int(n), "step") for n in rows["num_steps"]),
        )
        least = Points(
            name=f"{kind.label}: needed to break even",
            x=x,
            y=floats(rows["break_even"]),
            style=kind.style,
            mark="none",
        )
        marks += [kept, least]
    panel = Panel(
        x_label="Nodes verified in the step",
        y_label="Accepted draft tokens per step\n(mean, 95% interval)",
        marks=tuple(marks),
        has_whole_x=True,
    )
    num_steps = int(frame["num_steps"].sum())
    n = f"{counted(num_steps, 'step')}, {about_prompts(results, frame)}"
    return chart(f"{title} (n = {n})", [panel], results, frame)
