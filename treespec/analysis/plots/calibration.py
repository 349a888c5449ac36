"""Whether draft probabilities and forecasts can be believed."""

from __future__ import annotations

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Guide, Panel, Points
from treespec.analysis.look import NUM_STYLES
from treespec.analysis.plots.shared import (
    about_prompts,
    chart,
    counted,
    floats,
    kinds,
    nothing,
    too_many,
)
from treespec.analysis.plots.shared import notes as notes_of
from treespec.analysis.results import Results

_DIAGONAL = Guide("diagonal", name="perfectly calibrated")


def reliability(results: Results, num_bins: int = 10) -> Chart:
    """Return how often judged nodes were accepted, by draft probability and source."""
    frame = tables.reliability(results, num_bins)
    title = "Calibration of draft probabilities"
    if frame.empty:
        return nothing(title, results, "No drafted node was judged.", frame)
    labels = results.labels()
    kind_of = frame["source"].astype(str)
    if frame["run"].nunique() > 1:
        kind_of = kind_of + ": " + frame["run"].map(labels)
    marks = tuple(
        Points(
            name=str(name),
            x=floats(rows["mean_prob"]),
            y=floats(rows["rate"]),
            low=floats(rows["low"]),
            high=floats(rows["high"]),
            join="none",
            style=style,
            labels=tuple(counted(int(n), "node") for n in rows["num_judged"]),
        )
        for style, (name, rows) in enumerate(
            list(frame.groupby(kind_of, sort=False))[:NUM_STYLES]
        )
    )
    panel = Panel(
        x_label="Draft probability (mean of bin)",
        y_label="Accepted, of judged nodes\n(share, 95% interval)",
        marks=marks,
        guides=(_DIAGONAL,),
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.03),
        height=1.2,
    )
    n = counted(int(frame["num_judged"].sum()), "judged node")
    told = (
        *too_many(frame.assign(kind=kind_of), "kind"),
        *notes_of(results, list(frame["run"].unique())),
    )
    title = f"{title} (n = {n}, {about_prompts(results, frame)})"
    return Chart(title, (panel,), told, frame)


def expected_and_realised(results: Results, num_bins: int = 8) -> Chart:
    """Return what policies expected to be accepted next to what was."""
    frame = tables.expected_and_realised(results, num_bins=num_bins)
    title = "Expected and realised acceptance"
    if frame.empty:
        why = "No step has a forecast: its policy makes none."
        return nothing(title, results, why, frame)
    marks = tuple(
        Points(
            name=kind.label,
            x=floats(kind.rows["expected"]),
            y=floats(kind.rows["realised"]),
            low=floats(kind.rows["low"]),
            high=floats(kind.rows["high"]),
            join="none",
            style=kind.style,
        )
        for kind in kinds(results, frame)
    )
    panel = Panel(
        x_label="Expected accepted draft tokens per step (mean of bin)",
        y_label="Accepted draft tokens per step\n(mean, 95% interval)",
        marks=marks,
        guides=(_DIAGONAL,),
    )
    num_steps = int(frame["num_steps"].sum())
    n = f"{counted(num_steps, 'step')}, {about_prompts(results, frame)}"
    return chart(f"{title} (n = {n})", [panel], results, frame)
