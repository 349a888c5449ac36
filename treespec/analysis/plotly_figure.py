"""Draws a chart with plotly: the same numbers, to hover, zoom and pick from."""

from __future__ import annotations

from math import ceil
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from treespec.analysis.chart import Chart, Guide, Panel, Points, Spans
from treespec.analysis.look import INK, PALE, look

_SHAPES = {"line": "linear", "steps": "hv", "none": "linear"}
_HEIGHT, _ROW = 380, 34


def draw(chart: Chart) -> go.Figure:
    """Return a chart as an interactive figure; one without panels says why in words."""
    if chart.is_empty:
        return _words(chart)
    heights = [_panel_height(panel) for panel in chart.panels]
    figure = make_subplots(
        rows=len(chart.panels),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.06,
        row_heights=heights,
    )
    listed: set[str] = set()
    for row, panel in enumerate(chart.panels, start=1):
        for mark in panel.marks:
            trace = _spans(mark) if isinstance(mark, Spans) else _points(mark, panel)
            # A run that is in several panels is listed once, and hidden in all of them.
            is_new = bool(mark.name) and mark.name not in listed
            trace.update(legendgroup=mark.name, showlegend=is_new)
            listed.add(mark.name)
            figure.add_trace(trace, row=row, col=1)
            if isinstance(mark, Points) and mark.stars:
                figure.add_trace(_stars(mark), row=row, col=1)
        for guide in panel.guides:
            _add_guide(figure, guide, panel, row)
        _set_axes(figure, panel, row)
    figure.update_xaxes(title_text=chart.panels[-1].x_label, row=len(heights), col=1)
    subtitle = f"<br><sup>{_plain('; '.join(chart.notes))}</sup>" if chart.notes else ""
    figure.update_layout(
        title=_plain(chart.title) + subtitle,
        template="plotly_white",
        barmode="overlay",
        height=sum(heights) + 60,
        legend={"orientation": "h", "y": -0.25},
        font={"color": INK},
    )
    return figure


def _words(chart: Chart) -> go.Figure:
    figure = go.Figure()
    figure.add_annotation(
        text="<br>".join(map(_plain, chart.notes)),
        showarrow=False,
        font={"size": 14},
        **{"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper"},
    )
    figure.update_layout(title=_plain(chart.title), template="plotly_white")
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure


def _panel_height(panel: Panel) -> float:
    if panel.categories:
        return 90 + _ROW * len(panel.categories)
    return _HEIGHT * panel.height


def _points(points: Points, panel: Panel) -> go.Scatter:
    style = look(points.style)
    modes = {"lines": points.join != "none", "markers": points.mark != "none"}
    symbol = "star-open" if points.mark == "star" else style.marker[1]
    errors = _errors(points, along_x=bool(panel.categories))
    return go.Scatter(
        x=points.x,
        y=[y + points.dodge for y in points.y] if panel.categories else points.y,
        name=_plain(points.name),
        mode="+".join(mode for mode, wanted in modes.items() if wanted) or "none",
        line={
            "color": style.colour,
            "dash": style.dash[1],
            "shape": _SHAPES[points.join],
        },
        marker={"color": style.colour, "symbol": symbol, "size": 8},
        text=[_plain(label) for label in points.labels] or None,
        **errors,
    )


def _errors(points: Points, *, along_x: bool) -> dict[str, Any]:
    if points.low is None or points.high is None:
        return {}
    middle = points.x if along_x else points.y
    reach = {
        "type": "data",
        "symmetric": False,
        "array": [h - m for h, m in zip(points.high, middle, strict=True)],
        "arrayminus": [m - low for low, m in zip(points.low, middle, strict=True)],
    }
    return {"error_x" if along_x else "error_y": reach}


def _stars(points: Points) -> go.Scatter:
    return go.Scatter(
        x=[points.x[place] for place in points.stars],
        y=[points.y[place] for place in points.stars],
        mode="markers",
        marker={
            "symbol": "star-open",
            "size": 18,
            "color": look(points.style).colour,
        },
        showlegend=False,
        hoverinfo="skip",
    )


def _spans(spans: Spans) -> go.Bar:
    style = look(spans.style)
    return go.Bar(
        orientation="h",
        y=spans.rows,
        x=spans.lengths,
        base=spans.starts,
        name=_plain(spans.name),
        width=0.62,
        marker={
            "color": style.colour,
            "pattern": {"shape": style.hatch[1], "fgcolor": "white", "size": 6},
        },
        customdata=spans.lengths,
        hovertemplate="%{fullData.name}: %{customdata:.3g}<extra></extra>",
    )


def _add_guide(figure: go.Figure, guide: Guide, panel: Panel, row: int) -> None:
    line = {"color": PALE, "dash": "dot", "width": 1}
    place: dict[str, Any] = {"row": row, "col": 1}
    if guide.kind == "x":
        figure.add_vline(x=guide.value, line=line, **_called(guide), **place)
    elif guide.kind == "y":
        figure.add_hline(y=guide.value, line=line, **_called(guide), **place)
    else:
        points = [mark for mark in panel.marks if isinstance(mark, Points)]
        ends = [0.0, max((x for mark in points for x in mark.x), default=1.0)]
        if panel.x_range is not None:
            ends = list(panel.x_range)
        trace = go.Scatter(
            x=ends, y=ends, mode="lines", line=line, name=_plain(guide.name)
        )
        figure.add_trace(trace, **place)


def _called(guide: Guide) -> dict[str, Any]:
    """Return what writes a guide's name beside it, as on paper."""
    return {"annotation_text": _plain(guide.name)} if guide.name else {}


def _whole_step(panel: Panel) -> int:
    """Return the distance of whole ticks of which there are about ten."""
    points = [mark for mark in panel.marks if isinstance(mark, Points)]
    largest = max((x for mark in points for x in mark.x), default=1.0)
    return max(1, ceil(largest / 10))


def _set_axes(figure: go.Figure, panel: Panel, row: int) -> None:
    place: dict[str, Any] = {"row": row, "col": 1}
    figure.update_xaxes(type=panel.x_scale, range=panel.x_range, **place)
    figure.update_yaxes(
        title_text=panel.y_label, type=panel.y_scale, range=panel.y_range, **place
    )
    if panel.has_whole_x:
        figure.update_xaxes(tick0=0, dtick=_whole_step(panel), **place)
    if panel.categories:
        names = [_plain(name) for name in panel.categories]
        figure.update_yaxes(
            tickvals=list(range(len(names))),
            ticktext=names,
            range=[len(names) - 0.4, -0.6],
            **place,
        )


def _plain(text: str) -> str:
    """Return text whose signs plotly does not read as HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
