"""Charts of the studies, made of estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paired import Estimate
from treespec.analysis.chart import Guide, Mark, Points

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


def missing_notes(missing: Mapping[str, str]) -> tuple[str, ...]:
    """Return a note for each job that is not in a chart."""
    return tuple(f"without {job}, which failed" for job in missing)
