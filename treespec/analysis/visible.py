"""Any string as characters that can be seen and that do nothing.

A token may hold anything: line breaks, terminal escapes, marks that turn the direction
of a line around, halves of a character. Whatever would act or vanish is shown by a
picture (␊) or by its number (⟨U+202E⟩).
"""

from __future__ import annotations

import unicodedata

PRINTED = {chr(0x2400 + code): f"^{chr(0x40 + code)}" for code in range(0x20)} | {
    "␊": "↵",
    "␉": "⇥",
    "␡": "^?",
}
"""Signs for the pictures of control characters, which many fonts lack."""
_DELETE = 0x7F
_JOINERS = frozenset("\u200c\u200d")
# Controls, formats, surrogates, private, unassigned, line, paragraph, other spaces.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))


def visible_label(text: str) -> str:
    """Return a token's text for a label: one line, spaces shown as well.

    Args:
        text: Any string, lone surrogates included.
    """
    shown = "".join("␣" if char == " " else _shown(char) for char in text)
    # A mark alone would sit on whatever stands before the label.
    return "◌" + shown if text and unicodedata.category(text[0])[0] == "M" else shown


def visible_text(text: str) -> str:
    """Return running text: line breaks break lines, after a picture of theirs.

    Joiners stay as they are: emoji and several scripts are written with them.

    Args:
        text: Any string, lone surrogates included.
    """
    return "".join(map(_running, text))


def shorten(label: str, most: int) -> str:
    """Return a label of at most ``most`` characters, cut in the middle."""
    if len(label) <= most:
        return label
    head = most // 2
    return label[:head] + "…" + label[len(label) - (most - 1 - head) :]


def cells(label: str) -> int:
    """Return how many columns of a fixed-width font a visible label takes."""
    return sum(map(_cells_of, label))


def _cells_of(char: str) -> int:
    if unicodedata.category(char)[0] == "M":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _running(char: str) -> str:
    if char == "\n":
        return "␊\n"
    return char if char == " " or char in _JOINERS else _shown(char)


def _shown(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == _DELETE:
        return "␡"
    return f"⟨U+{code:04X}⟩" if unicodedata.category(char) in _UNSEEN else char


def printed(label: str) -> str:
    """Return a visible label in signs that every font has."""
    return "".join(PRINTED.get(char, char) for char in label)
