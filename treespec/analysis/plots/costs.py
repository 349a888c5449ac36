"""What forwards cost, and the roofline under them."""

from __future__ import annotations

import pandas as pd

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Panel, Points
from treespec.analysis.plots.shared import (
    chart,
    counted,
    floats,
    kinds,
    nothing,
    why_untimed,
)
from treespec.analysis.results import Results
from treespec.analysis.tables.costs import SIZES
from treespec.costs import Costs
from treespec.profile import Profile

_ROWS = "Rows of the forward (nodes, root included)"


def cost_curves(costs: Costs, sizes: tuple[int, ...] = SIZES) -> Chart:
    """Return what a cost profile says of both models' forwards, with rooflines.

    Args:
        costs: A cost profile, or the ``costs`` of a calibration.
        sizes: Rows to show.
    """
    frame = tables.cost_curve(costs, sizes)
    marks: list[Points] = []
    for style, (model, curve) in enumerate(frame.groupby("model", sort=False)):
        marks += [
            _curve(str(model), curve, style),
            _roof(f"{model}: roofline", curve, style),
        ]
    title = f"Cost of forwards (n = {counted(len(sizes), 'size')})"
    return Chart(title, (_panel(marks, "Time of a forward (ms)"),), (), frame)


def cost_profile(profile: Profile) -> Chart:
    """Return a profile's timed forwards, their fit, and the roofline of the machine.

    Of the shortest texts only; ``tables.cost_profile`` has all of them.

    Args:
        profile: What ``treespec profile`` measured of a pair.
    """
    frame = tables.cost_profile(profile)
    if frame.empty:
        return Chart("Cost profile (n = 0)", (), ("No forward was timed.",), frame)
    marks: list[Points] = []
    shortest = frame[frame["length"] == frame["length"].min()]
    shortest = shortest.sort_values(["model", "num_rows"], ascending=[False, True])
    for style, (model, rows) in enumerate(shortest.groupby("model", sort=False)):
        x = floats(rows["num_rows"])
        marks += [
            _curve(str(model), rows, style),
            Points(f"{model}: fit", x, _ms(rows["fitted"]), style=style, mark="none"),
        ]
        if rows["floor"].notna().any():  # a drafter without a model has none
            floor = _ms(rows["floor"])
            roof = Points(f"{model}: roofline", x, floor, style=style + 2, mark="none")
            marks.append(roof)
    panel = _panel(marks, "Time of a forward (ms)")
    n = counted(len(shortest), "timed size")
    length = counted(int(shortest["length"].iloc[0]), "token")
    return Chart(f"Cost profile behind {length} of text (n = {n})", (panel,), (), frame)


def measured_costs(results: Results) -> Chart:
    """Return what verifying took in the steps of runs, with each run's roofline."""
    frame = tables.measured_costs(results)
    title = "Cost of verifying"
    if frame.empty:
        why = "No step of one request alone was timed."
        return nothing(title, results, why_untimed(results, why), frame)
    marks: list[Points] = []
    for kind in kinds(results, frame):
        rows = kind.rows
        low, high = _ms(rows["low"]), _ms(rows["high"])
        marks += [
            _curve(kind.label, rows, kind.style, low, high),
            _roof(f"{kind.label}: roofline", rows, kind.style),
        ]
    panel = _panel(marks, "Verify phase of a step\n(ms, median and quartiles)")
    n = counted(int(frame["num_steps"].sum()), "step")
    return chart(f"{title} (n = {n})", [panel], results, frame)


def _panel(marks: list[Points], y_label: str) -> Panel:
    return Panel(_ROWS, y_label, tuple(marks), x_scale="log", y_scale="log")


def _curve(
    name: str,
    rows: pd.DataFrame,
    style: int,
    low: tuple[float, ...] | None = None,
    high: tuple[float, ...] | None = None,
) -> Points:
    x, y = floats(rows["num_rows"]), _ms(rows["seconds"])
    return Points(name, x, y, low, high, join="none", style=style)


def _roof(name: str, curve: pd.DataFrame, style: int) -> Points:
    roof = tables.roofline(curve)
    x, y = floats(roof["num_rows"]), _ms(roof["seconds"])
    return Points(name, x, y, style=style, mark="none")


def _ms(seconds: pd.Series) -> tuple[float, ...]:
    return tuple(1e3 * value for value in floats(seconds))
