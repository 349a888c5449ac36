"""A chart as data: what is drawn, in words that both drawing libraries understand.

So the static figure and its interactive twin cannot show different numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd

from treespec.errors import TreespecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from plotly.graph_objects import Figure as InteractiveFigure

Join = Literal["line", "steps", "none"]
Mark = Literal["own", "star", "none"]
Scale = Literal["linear", "log"]
_DOTS_PER_INCH = 110


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one kind, with intervals if they have any.

    Attributes:
        name: What the legend calls them; empty for none.
        x: Horizontal places.
        y: Vertical places; numbers of categories where the panel has such.
        low: Lower ends of intervals; ``None`` for none. Along y, or along x where the
            panel has categories.
        high: Upper ends.
        join: Whether a line joins them, and how.
        style: Which colour, marker and dash; kinds with the same are alike.
        mark: The style's own marker at each point, a hollow star, or none.
        stars: Places in ``x`` of points to be starred besides.
        dodge: By how much paper shows them to the right of ``x`` (or below ``y`` where
            the panel has categories), so that equal numbers do not hide each other.
        labels: What hovering shows of each point, besides its numbers.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    join: Join = "line"
    style: int = 0
    mark: Mark = "own"
    stars: tuple[int, ...] = ()
    dodge: float = 0.0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spans:
    """Horizontal bars of one kind.

    Attributes:
        name: What the legend calls them.
        rows: The number of each bar's category.
        starts: Where each begins.
        lengths: How long each is.
        style: Which colour and hatching.
        labels: What is written into each bar, if there is room; may be empty.
    """

    name: str
    rows: tuple[int, ...]
    starts: tuple[float, ...]
    lengths: tuple[float, ...]
    style: int = 0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Guide:
    """A thin line to compare with: ``x`` or ``y`` at a value, or the diagonal."""

    kind: Literal["x", "y", "diagonal"]
    value: float = 0.0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        x_label: What is on the horizontal axis, with its unit.
        y_label: The same of the vertical axis.
        marks: What is drawn.
        guides: Lines to compare with.
        x_scale: Scale of the horizontal axis.
        y_scale: Scale of the vertical axis.
        categories: Names of rows, top to bottom, where the vertical axis has names.
        x_range: Ends of the horizontal axis; ``None`` leaves them to the data.
        y_range: The same of the vertical axis.
        has_whole_x: Whether only whole numbers are ticked on the horizontal axis.
        height: Height next to that of other panels.
    """

    x_label: str
    y_label: str
    marks: tuple[Points | Spans, ...]
    guides: tuple[Guide, ...] = ()
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    categories: tuple[str, ...] = ()
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    has_whole_x: bool = False
    height: float = 1.0


@dataclass(frozen=True)
class Chart:
    """A chart and its numbers; a notebook shows it as a picture.

    Attributes:
        title: What it shows, and of how many.
        panels: Top to bottom, with one horizontal axis. None: there is nothing to
            show, and ``notes`` say why.
        notes: What a reader must know, such as runs that are not in it.
        frame: The numbers that are drawn.
    """

    title: str
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    frame: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.panels

    def figure(self) -> Figure:
        """Return it as a matplotlib figure, ready for paper."""
        from treespec.analysis.matplotlib_figure import draw  # noqa: PLC0415 (slow)

        return draw(self)

    def interactive(self) -> InteractiveFigure:
        """Return it as a plotly figure, to hover and zoom."""
        from treespec.analysis.plotly_figure import draw  # noqa: PLC0415 (slow)

        return draw(self)

    def save(self, path: str | Path) -> Path:
        """Write it and return where: ``.pdf``, ``.svg``, ``.png``, or ``.html``.

        The page is interactive and complete: it opens without a network.

        Raises:
            TreespecError: The name ends in something else.
        """
        path = Path(path)
        if path.suffix == ".html":
            self.interactive().write_html(path, include_plotlyjs=True)
        elif path.suffix in (".pdf", ".svg", ".png"):
            self.figure().savefig(path, dpi=2 * _DOTS_PER_INCH)
        else:
            raise TreespecError(
                f"path must end in .pdf, .svg, .png or .html, got {path.name!r}"
            )
        return path

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure().savefig(buffer, format="png", dpi=_DOTS_PER_INCH)
        return buffer.getvalue()
