"""Charts of the studies, made of estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from paired import Estimate
from treespec.analysis.chart import Chart, Guide, Mark, Panel, Points, Spans

PLAIN = Guide("y", 1.0, "without speculation")


def points(
    name: str,
    x: Sequence[float],
    y: Sequence[Estimate],
    style: int = 0,
    *,
    join: bool = True,
    labels: Sequence[str] = (),
    stars: Sequence[int] = (),
    mark: Mark = "own",
    dodge: float = 0.0,
) -> Points:
    """Return estimates over numbers, with their intervals."""
    return Points(
        name=name,
        x=tuple(map(float, x)),
        y=tuple(one.value for one in y),
        low=tuple(one.low for one in y),
        high=tuple(one.high for one in y),
        join="line" if join else "none",
        style=style,
        labels=tuple(labels),
        stars=tuple(stars),
        mark=mark,
        dodge=dodge,
    )


def forest(
    name: str, y: Sequence[Estimate], style: int = 0, dodge: float = 0
) -> Points:
    """Return estimates beside the names of rows."""
    return Points(
        name=name,
        x=tuple(one.value for one in y),
        y=tuple(map(float, range(len(y)))),
        low=tuple(one.low for one in y),
        high=tuple(one.high for one in y),
        join="none",
        style=style,
        dodge=dodge,
    )


def one_panel(
    title: str,
    x_label: str,
    y_label: str,
    marks: Sequence[Points | Spans],
    guides: Sequence[Guide] = (),
    *,
    frame: pd.DataFrame,
    notes: Sequence[str] = (),
    **look: object,
) -> Chart:
    """Return a chart of one pair of axes."""
    panel = Panel(x_label, y_label, tuple(marks), tuple(guides), **look)  # type: ignore[arg-type]
    return Chart(title, (panel,), tuple(notes), frame)


def missing_notes(missing: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note for each job that is not in a chart."""
    return tuple(f"without {job}, which failed" for job in missing)
