"""Numbers in words, and lines of a table: label, value, and what it means."""

from __future__ import annotations

WIDTH, LABEL, MEANING = 88, 16, 26
"""Columns of a line, and where value and meaning begin."""


def row(label: str, value: str, meaning: str) -> str:
    """Return a line of a table; a text alone has no meaning beside it."""
    text = f"{label:<{LABEL}}{value}"
    return f"{text:<{MEANING}}{meaning}".rstrip() if meaning else text.rstrip()


def number(value: float | None, digits: int = 2) -> str:
    """Return a number to be read, or a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def times(value: float | None) -> str:
    """Return a ratio, or a dash."""
    return "-" if value is None else f"{value:.2f}x"


def percent(value: float | None) -> str:
    """Return a share, or a dash."""
    return "-" if value is None else f"{100 * value:.0f}%"


def milliseconds(value: float | None) -> str:
    """Return milliseconds, or a dash."""
    return "-" if value is None else f"{value:,.0f} ms"
