"""Colours, markers, dashes and hatchings: told apart by any eye, and without colour."""

from __future__ import annotations

from dataclasses import dataclass

INK, PALE = "#222222", "#888888"
# Okabe and Ito's colours for all kinds of colour vision; their yellow is too pale for
# lines on white and comes last.
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
    "#F0E442",
)
# matplotlib's and plotly's names of the same things.
_MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
    ("*", "star"),
)
_DASHES = (("-", "solid"), ("--", "dash"), ("-.", "dashdot"), (":", "dot"))
_HATCHES = (
    ("", ""),
    ("///", "/"),
    ("\\\\\\", "\\"),
    ("xx", "x"),
    ("..", "."),
    ("--", "-"),
    ("||", "|"),
    ("++", "+"),
)
NUM_STYLES = len(_COLOURS)
"""Kinds that can be told apart in one panel."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one kind of mark looks, for both libraries (matplotlib's word, plotly's)."""

    colour: str
    marker: tuple[str, str]
    dash: tuple[str, str]
    hatch: tuple[str, str]


def look(style: int) -> Look:
    """Return how marks of a style look; styles repeat after ``NUM_STYLES``."""
    place = style % NUM_STYLES
    return Look(
        _COLOURS[place], _MARKERS[place], _DASHES[place % len(_DASHES)], _HATCHES[place]
    )
