"""How far a rule is from the best that any rule could do."""

from __future__ import annotations

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Panel, Points
from treespec.analysis.plots.shared import (
    about_prompts,
    chart,
    counted,
    floats,
    kinds,
    nothing,
    rates,
)
from treespec.analysis.results import Results

_NOT_TRACED = "No node was traced: run with trace=nodes."


def rule_and_bound(results: Results) -> Chart:
    """Return the rule's acceptance next to the optimum, by depth of the children."""
    frame = tables.rule_and_bound(results)
    title = "Acceptance rule against the optimal bound"
    if frame.empty:
        traced = (results.runs["trace"] == "nodes").any()
        why = "No node was drafted." if traced else _NOT_TRACED
        return nothing(title, results, why, frame)
    marks: list[Points] = []
    for kind in kinds(results, frame):
        rule = rates(kind, "depth")
        bound = Points(
            name=f"{kind.label}: optimal bound",
            x=floats(kind.rows["depth"]),
            y=floats(kind.rows["optimal"]),
            join="none",
            style=kind.style,
            mark="star",
            dodge=rule.dodge,
        )
        marks += [rule, bound]
    panel = Panel(
        x_label="Depth of the children (tokens)",
        y_label="A child accepted, of evaluated nodes\n(share, 95% interval)",
        marks=tuple(marks),
        y_range=(0.0, 1.03),
        has_whole_x=True,
    )
    num_evaluated = int(frame["num_evaluated"].sum())
    n = f"{counted(num_evaluated, 'evaluated node')}, {about_prompts(results, frame)}"
    return chart(f"{title} (n = {n})", [panel], results, frame)
