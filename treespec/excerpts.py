"""Texts to judge by: files as they are, or prompts with their answers.

A file is cut into pieces of moderate length, of which a few are taken, spread evenly.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError

PIECE = 2000
"""Characters of a piece of a file that is not JSON lines, about."""
LEAST = 200
"""Characters that must be there, all texts together."""
_ANSWER_KEYS = ("answers", "answer", "reference")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A text, and what came before it.

    Attributes:
        name: Where it is from.
        source: What it shares with its like: the file of a piece, the line of a turn.
        turns: Messages before it, the user's first and then in turns; may be empty.
        text: What a model would write.
    """

    name: str
    source: str
    turns: tuple[str, ...]
    text: str


def read_excerpts(paths: Sequence[str], num_texts: int) -> list[Excerpt]:
    """Return the texts of some files, at most ``num_texts``, spread evenly.

    ``.jsonl`` and ``.jsonl.gz`` hold an object per line with ``turns`` (a list of user
    messages) or ``prompt``, and perhaps ``answers``, ``answer`` or ``reference`` (a
    text, or one per turn). Without an answer the messages themselves are the text. Any
    other file is one text. What is there twice is taken once.

    Raises:
        TreespecError: Names the file that is missing, empty, binary or no such JSON,
            or says that there is too little text.
    """
    given = [excerpt for path in paths for excerpt in _read(Path(path).expanduser())]
    found = list({(excerpt.turns, excerpt.text): excerpt for excerpt in given}.values())
    num_characters = sum(len(excerpt.text) for excerpt in found)
    if num_characters < LEAST:
        raise TreespecError(
            f"too little text to judge by: {num_characters} characters in "
            f"{', '.join(paths)}; give at least {LEAST}, better some thousands"
        )
    if len(found) <= num_texts:
        return found
    return [found[place * len(found) // num_texts] for place in range(num_texts)]


def _read(path: Path) -> list[Excerpt]:
    if not path.exists():
        raise TreespecError(f"{path} does not exist (seen from {Path.cwd()})")
    if not path.is_file():
        raise TreespecError(f"{path} must be a file, not a folder; name its files")
    text = _text(path)
    if not text.strip():
        raise TreespecError(f"{path} is empty; give a file with text in it")
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return list(_parsed(text, str(path)))
    return list(_pieces(text, str(path)))


def _text(path: Path) -> str:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            content: bytes = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise TreespecError(f"cannot read {path}: {error}") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TreespecError(
            f"{path} is not UTF-8 text (byte {error.start}); give plain text or .jsonl"
        ) from error
    if "\0" in text:
        raise TreespecError(f"{path} is binary: it has zero bytes; give plain text")
    return text.replace("\r\n", "\n")


def _pieces(text: str, name: str) -> Iterator[Excerpt]:
    """Cut a text behind the last line end, or else space, that a piece has room for."""
    start = number = 0
    while start < len(text):
        stop = start + PIECE
        if stop < len(text):
            ends = (text.rfind(mark, start + PIECE // 2, stop) for mark in "\n ")
            stop = next((end + 1 for end in ends if end >= 0), stop)
        if text[start:stop].strip():
            number += 1
            yield Excerpt(f"{name}, part {number}", name, (), text[start:stop])
        start = stop


def _parsed(content: str, name: str) -> Iterator[Excerpt]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TreespecError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise TreespecError(f"{where}: must be an object with turns or prompt")
        yield from _of_row(row, where)


def _of_row(row: dict[str, Any], where: str) -> Iterator[Excerpt]:
    turns = _texts(row.get("turns", row.get("prompt")))
    if not turns:
        raise TreespecError(
            f"{where}: needs turns (a list of texts) or prompt (a text), got "
            f"{sorted(row)}"
        )
    answers = next((a for key in _ANSWER_KEYS if (a := _texts(row.get(key)))), [])
    if not answers:
        yield Excerpt(where, where, (), "\n\n".join(turns))
        return
    before: tuple[str, ...] = ()
    for place, (turn, answer) in enumerate(zip(turns, answers, strict=False), start=1):
        before = (*before, turn)
        yield Excerpt(f"{where}, turn {place}", where, before, answer)
        before = (*before, answer)


def _texts(value: object) -> list[str]:
    """Return a text or a list of texts as a list; nothing for anything else."""
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        return []
    return [str(text) for text in texts]
