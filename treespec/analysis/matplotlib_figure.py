"""Draws a chart with matplotlib: for paper, without the global state of pyplot."""

from __future__ import annotations

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from treespec.analysis.chart import Chart, Guide, Mark, Panel, Points, Spans
from treespec.analysis.look import INK, PALE, look

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text in a paper's PDF
    "svg.fonttype": "none",
}
_WIDTH, _HEIGHT, _ROW = 6.4, 3.6, 0.34
_TITLE_WIDTH, _NOTE_WIDTH = 68, 100
_NARROW = 0.05
_COLUMNS = ((3, 25), (2, 40))
"""How many columns a legend has, and the longest name that fits."""
_STAR: dict[str, Any] = {"marker": "*", "markersize": 13, "markerfacecolor": "none"}


def draw(chart: Chart) -> Figure:
    """Return a chart as a figure; one without panels says why in words."""
    with rc_context(_STYLE):
        if chart.is_empty:
            return _words(chart)
        heights = [_panel_height(panel) for panel in chart.panels]
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        grid = figure.subplots(
            len(chart.panels), 1, sharex=True, squeeze=False, height_ratios=heights
        )
        axes: list[Axes] = list(grid[:, 0])
        for axis, panel in zip(axes, chart.panels, strict=True):
            _draw_panel(axis, panel)
        axes[-1].set_xlabel(chart.panels[-1].x_label)
        axes[0].set_title(fill(chart.title, _TITLE_WIDTH), loc="left", color=INK)
        _legend(figure, chart)
        return figure


def _legend(figure: Figure, chart: Chart) -> None:
    """Name every kind of mark once, below all panels, and say what must be known."""
    named = {
        label: handle
        for axis in figure.axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        if label not in _told_by_axes(chart)
    }
    note = fill("; ".join(chart.notes), _NOTE_WIDTH)
    longest = max(map(len, named), default=0)
    legend = figure.legend(
        named.values(),
        named.keys(),
        loc="outside lower left",
        ncols=next((n for n, most in _COLUMNS if longest <= most), 1),
        frameon=False,
        # As its title, since two texts at the lower edge would lie on each other.
        title=note or None,
        title_fontproperties={"size": 7},
        alignment="left",
    )
    legend.get_title().set_color(PALE)


def _told_by_axes(chart: Chart) -> set[str]:
    return {name for panel in chart.panels for name in panel.categories}


def _panel_height(panel: Panel) -> float:
    if not panel.categories:
        return _HEIGHT * panel.height
    return 1.5 + _ROW * len(panel.categories)


def _words(chart: Chart) -> Figure:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    figure.suptitle(fill(chart.title, _TITLE_WIDTH), x=0.02, ha="left", fontsize=10)
    text = "\n".join(fill(note, 70) for note in chart.notes)
    figure.text(0.5, 0.5, text, ha="center", va="center", color=INK)
    return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    for mark in panel.marks:
        if isinstance(mark, Spans):
            _draw_spans(axis, mark, panel)
        else:
            _draw_points(axis, mark, along_x=bool(panel.categories))
    axis.set_ylabel(panel.y_label)
    axis.set_xscale(panel.x_scale)
    axis.set_yscale(panel.y_scale)
    for side in (axis.xaxis, axis.yaxis):
        if side.get_scale() == "log":
            side.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            side.set_major_formatter("{x:g}")
            side.set_minor_formatter("")
    if panel.categories:
        axis.set_yticks(range(len(panel.categories)), panel.categories)
        axis.set_ylim(len(panel.categories) - 0.4, -0.6)
        axis.grid(visible=False, axis="y")
    if panel.has_whole_x:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.x_range is not None:
        axis.set_xlim(*panel.x_range)
    if panel.y_range is not None:
        axis.set_ylim(*panel.y_range)
    for guide in panel.guides:
        _draw_guide(axis, guide)


def _draw_points(axis: Axes, points: Points, *, along_x: bool) -> None:
    style = look(points.style)
    x, y = np.array(points.x), np.array(points.y)
    x, y = (x, y + points.dodge) if along_x else (x + points.dodge, y)
    if points.low is not None and points.high is not None:
        middle = x if along_x else y
        low, high = np.array(points.low), np.array(points.high)
        known = np.isfinite(low) & np.isfinite(high)
        # A mean of rounded numbers may lie outside of its interval by the last bit.
        reach = np.stack([middle - low, high - middle])[:, known].clip(min=0)
        axis.errorbar(
            x[known],
            y[known],
            xerr=reach if along_x else None,
            yerr=None if along_x else reach,
            fmt="none",
            ecolor=style.colour,
            elinewidth=1.1,
            capsize=2.5,
        )
    marks: dict[Mark, dict[str, Any]] = {
        "own": {"marker": style.marker[0], "markersize": 5},
        "star": _STAR,
        "none": {},
    }
    axis.plot(
        x,
        y,
        color=style.colour,
        linestyle="" if points.join == "none" else style.dash[0],
        drawstyle="steps-post" if points.join == "steps" else "default",
        linewidth=1.4,
        label=points.name,
        **marks[points.mark],
    )
    stars = list(points.stars)
    axis.plot(x[stars], y[stars], color=style.colour, linestyle="", **_STAR)


def _draw_spans(axis: Axes, spans: Spans, panel: Panel) -> None:
    style = look(spans.style)
    axis.barh(
        spans.rows,
        spans.lengths,
        left=spans.starts,
        height=0.62,
        color=style.colour,
        hatch=style.hatch[0],
        edgecolor="white",
        linewidth=0.4,
        label=spans.name,
    )
    widest = panel.x_range[1] - panel.x_range[0] if panel.x_range else np.inf
    for row, start, length, label in zip(
        spans.rows, spans.starts, spans.lengths, spans.labels, strict=False
    ):
        if length > _NARROW * widest:
            axis.text(
                start + length / 2,
                row,
                label,
                ha="center",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2},
            )


def _draw_guide(axis: Axes, guide: Guide) -> None:
    line: dict[str, Any] = {
        "color": PALE,
        "linewidth": 1.0,
        "linestyle": (0, (1, 1.5)),
        "zorder": 1,
    }
    if guide.name:
        line["label"] = guide.name
    if guide.kind == "x":
        axis.axvline(guide.value, **line)
    elif guide.kind == "y":
        axis.axhline(guide.value, **line)
    else:
        axis.axline((0, 0), slope=1, **line)
