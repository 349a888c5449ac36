"""Speed by size of the tree, by kind of text, and from request to request."""

from __future__ import annotations

import pandas as pd

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Guide, Panel, Points
from treespec.analysis.look import NUM_STYLES
from treespec.analysis.plots.shared import (
    Kind,
    about_prompts,
    chart,
    counted,
    floats,
    kinds,
    notes,
    nothing,
    plain_words,
    why_untimed,
)
from treespec.analysis.results import Results

_NOT_DECODED = "No prompt had a token to decode on both sides."
_MOST_LATENCIES = NUM_STYLES // 2


def speed_by_nodes(results: Results) -> Chart:
    """Return speed-ups by verified nodes, the fastest run of each kind starred."""
    frame = tables.speed_by_nodes(results)
    title = "Nodes against speed"
    if frame.empty:
        return nothing(title, results, why_untimed(results, _NOT_DECODED), frame)
    series = list(frame.groupby("series", sort=False))
    marks = tuple(
        Points(
            name=f"{name} (fastest: star)",
            x=floats(rows["mean_nodes"]),
            y=floats(rows["speedup"]),
            low=floats(rows["low"]),
            high=floats(rows["high"]),
            style=style,
            stars=_places(rows["is_peak"]),
            labels=tuple(rows["run"]),
        )
        for style, (name, rows) in enumerate(series[:NUM_STYLES])
    )
    panel = Panel(
        x_label="Nodes verified per step (mean)",
        y_label="Speed-up (times, 95% interval)",
        marks=marks,
        guides=(Guide("y", 1.0, plain_words(results)),),
    )
    n = f"{counted(len(frame), 'run')}, {about_prompts(results, frame)}"
    told = notes(results, list(frame["run"]))
    if len(series) > NUM_STYLES:
        told = (f"the first {NUM_STYLES} of {len(series)} kinds of runs", *told)
    return Chart(f"{title} (n = {n})", (panel,), told, frame)


def speedup_by_category(results: Results) -> Chart:
    """Return the speed-up of each category as a forest plot, all prompts last."""
    frame = tables.speedup_by_category(results)
    title = "Speed-up by category"
    if frame.empty:
        return nothing(title, results, why_untimed(results, _NOT_DECODED), frame)
    counts = frame.groupby("category")["num_prompts"].max()
    order = sorted(counts.index, key=lambda name: (name == tables.ALL, name))
    names = tuple(f"{_spoken(name)} ({counts[name]})" for name in order)
    shown = list(kinds(results, frame))
    marks = tuple(_forest(kind, order, len(shown)) for kind in shown)
    panel = Panel(
        x_label="Speed-up (times, 95% interval where there are 5 prompts or more)",
        y_label="Category (prompts per run)",
        marks=marks,
        guides=(Guide("x", 1.0, plain_words(results)),),
        categories=names,
    )
    title = f"{title} (n = {about_prompts(results, frame)})"
    return chart(title, [panel], results, frame)


def _forest(kind: Kind, order: list[str], num_kinds: int) -> Points:
    """Return a run's intervals, a little above or below those of the others."""
    spread = 0.6 / num_kinds
    rows = kind.rows
    return Points(
        name=kind.label,
        x=floats(rows["speedup"]),
        y=tuple(float(order.index(name)) for name in rows["category"]),
        low=floats(rows["low"]),
        high=floats(rows["high"]),
        join="none",
        style=kind.style,
        dodge=(kind.style - (num_kinds - 1) / 2) * spread,
    )


def _spoken(category: str) -> str:
    return category.replace("_", " ")


def _places(truths: pd.Series) -> tuple[int, ...]:
    return tuple(truths.to_numpy().nonzero()[0].tolist())


def latencies(results: Results) -> Chart:
    """Return how the latencies of requests are distributed, with and without."""
    frame = tables.latencies(results)
    title = "Latency of requests"
    if frame.empty:
        return nothing(
            title, results, why_untimed(results, "No request was timed."), frame
        )
    marks: list[Points] = []
    plain = plain_words(results)
    for kind in list(kinds(results, frame))[:_MOST_LATENCIES]:
        for offset, (mode, word) in enumerate(
            (("speculative", kind.label), ("baseline", f"{kind.label}: {plain}"))
        ):
            rows = kind.rows[kind.rows["mode"] == mode]
            marks.append(
                Points(
                    name=word,
                    x=(float(rows["latency_ms"].iloc[0]), *floats(rows["latency_ms"])),
                    y=(0.0, *floats(rows["share"])),
                    join="steps",
                    style=2 * kind.style + offset,
                    mark="none",
                )
            )
    panel = Panel(
        x_label="Latency, first token included (ms)",
        y_label="Requests that took no longer (share)",
        marks=tuple(marks),
        y_range=(0.0, 1.03),
    )
    title = f"{title} (n = {about_prompts(results, frame)})"
    return chart(title, [panel], results, frame, _MOST_LATENCIES)
