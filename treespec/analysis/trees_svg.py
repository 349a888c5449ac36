"""Trees for papers: one step as an SVG that stands alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from treespec.analysis.layout import Layout
from treespec.analysis.trees import MARKS, Kind, StepTree
from treespec.analysis.trees_text import probability
from treespec.analysis.visible import cells, printed, shorten

_ROW, _HEIGHT, _GAP, _MARGIN = 32.0, 24.0, 40.0, 12.0  # px
_FONT_SIZE, _CELL = 12.0, 7.3  # px; a column of the font
_PAD = 9.0
_MOST_CHARS = 24
_INK, _GREY = "#1f2328", "#6b7280"
_FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class _Style:
    """How nodes of one kind are drawn: told apart without colours as well."""

    fill: str
    stroke: str
    width: float
    dashes: str = ""
    ink: str = _INK


# Blue, vermilion, orange and purple of Okabe and Ito: told apart by every eye.
_STYLES: dict[Kind, _Style] = {
    "root": _Style("#e5e7eb", _INK, 1.6),
    "accepted": _Style("#dcecf7", "#0072b2", 2.4),
    "rejected": _Style("#ffffff", _GREY, 1.0),
    "unreached": _Style("#ffffff", "#9ca3af", 1.0, "3 3", _GREY),
    "cut": _Style("#ffffff", "#a64d85", 2.0, "1 3"),
    "bonus": _Style("#b34700", "#b34700", 2.4, ink="#ffffff"),
    "recovered": _Style("#b34700", "#b34700", 2.4, ink="#ffffff"),
}


@dataclass(frozen=True, slots=True)
class _Box:
    """A node's rectangle: its left edge, its middle line, its width."""

    left: float
    middle: float
    width: float


def step_svg(tree: StepTree, label: Callable[[int], str], title: str) -> str:
    """Return a step's tree as an SVG document, the root at the left.

    Args:
        tree: The step.
        label: From a token id to visible text.
        title: What a screen reader says of the picture; visible text.
    """
    layout = tree.layout()
    labels = [_node_label(tree, node, label) for node in range(len(tree.tokens))]
    boxes = _boxes(layout, labels)
    legend = _legend(tree)
    right = max(box.left + box.width for box in boxes) + _MARGIN
    width = max(right, _MARGIN * 2 + cells(legend) * _CELL * 10 / _FONT_SIZE)
    height = (max(layout.x) + 1) * _ROW + 2 * _MARGIN + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'font-family="{_FONTS}" font-size="{_FONT_SIZE:g}">',
        f"<title>{escape(title)}</title>",
        *_edges(tree, boxes),
        *(
            _node(boxes[node], tree.kinds[node], labels[node])
            for node in range(len(tree.tokens))
        ),
        f'<text x="{_MARGIN:g}" y="{height - _MARGIN:.1f}" font-size="10" '
        f'fill="{_GREY}">{escape(legend)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _Label:
    """What stands in a node: its sign and token, and its probabilities."""

    name: str
    figures: str

    @property
    def width(self) -> float:
        gap = 1 if self.figures else 0
        small = (cells(self.figures) + gap) * _CELL * 10 / _FONT_SIZE
        return cells(self.name) * _CELL + small + 2 * _PAD


def _node_label(tree: StepTree, node: int, label: Callable[[int], str]) -> _Label:
    token = printed(shorten(label(tree.tokens[node]), _MOST_CHARS))
    name = f"{MARKS[tree.kinds[node]]} {token}"
    trace = tree.trace(node)
    if trace is None:
        return _Label(name, "")
    draft, target = _short(trace.draft_prob), _short(trace.target_prob)
    return _Label(name, f"{draft}→{target}")


def _short(prob: float) -> str:
    """Return a probability in two digits, such as ``.25`` or ``1e-05``."""
    if prob == 0 or prob >= 0.01:
        return f"{prob:.2f}".removeprefix("0")
    return probability(prob) if prob < 0.001 else f"{prob:.3f}".removeprefix("0")


def _boxes(layout: Layout, labels: Sequence[_Label]) -> list[_Box]:
    widths = [0.0] * (max(layout.y) + 1)
    for depth, label in zip(layout.y, labels, strict=True):
        widths[depth] = max(widths[depth], label.width)
    lefts = [_MARGIN]
    for width in widths:
        lefts.append(lefts[-1] + width + _GAP)
    return [
        _Box(lefts[depth], _MARGIN + (x + 0.5) * _ROW, label.width)
        for x, depth, label in zip(layout.x, layout.y, labels, strict=True)
    ]


def _edges(tree: StepTree, boxes: Sequence[_Box]) -> list[str]:
    edges = []
    for node in range(1, len(tree.parents)):
        above, box = boxes[tree.parents[node]], boxes[node]
        start, style = above.left + above.width, _STYLES[tree.kinds[node]]
        bend = (start + box.left) / 2
        dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
        edges.append(
            f'<path d="M{start:.1f} {above.middle:.1f}C{bend:.1f} {above.middle:.1f} '
            f'{bend:.1f} {box.middle:.1f} {box.left:.1f} {box.middle:.1f}" '
            f'fill="none" stroke="{style.stroke}" stroke-width="{style.width:g}"'
            f"{dashes}/>"
        )
    return edges


def _node(box: _Box, kind: Kind, label: _Label) -> str:
    style = _STYLES[kind]
    top, base = box.middle - _HEIGHT / 2, box.middle + 4
    dashes = f' stroke-dasharray="{style.dashes}"' if style.dashes else ""
    weight = ' font-weight="600"' if style.width > 2 else ""
    figures = ""
    if label.figures:
        figures = (
            f'<text x="{box.left + box.width - _PAD:.1f}" y="{base:.1f}" '
            f'text-anchor="end" font-size="10" fill="{_GREY}">{label.figures}</text>'
        )
    return (
        f'<g><rect x="{box.left:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{_HEIGHT:g}" rx="{_HEIGHT / 2:g}" fill="{style.fill}" '
        f'stroke="{style.stroke}" stroke-width="{style.width:g}"{dashes}/>'
        f'<text x="{box.left + _PAD:.1f}" y="{base:.1f}" fill="{style.ink}"{weight} '
        f'xml:space="preserve">{escape(label.name)}</text>{figures}</g>'
    )


def _legend(tree: StepTree) -> str:
    kinds = [f"{mark} {kind}" for kind, mark in MARKS.items() if kind in tree.kinds[1:]]
    figures = ["draft→target probability"] if tree.traces else []
    return "   ".join([*kinds, *figures])
