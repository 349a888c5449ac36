"""Prompts from a file of JSON lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.errors import TreespecError


@dataclass(frozen=True, slots=True)
class JsonlDataset(AbstractDataset):
    """A ``.jsonl`` or ``.jsonl.gz`` file, one prompt a line.

    Each line is an object with ``id``, ``category`` and ``turns`` (a list of user
    messages), and perhaps ``chat`` (false: continue the one turn as raw text) and
    ``reference`` (a good answer, in any form). Other keys are left alone.

    Attributes:
        path: The file.
    """

    path: str

    def __post_init__(self) -> None:
        """Check that the path is text."""
        if not isinstance(self.path, str):
            raise TreespecError(
                f"dataset.path must be the path of a file, got {self.path!r}"
            )

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the file's prompts; see the base class for which ones."""
        return choose(
            parse_prompts(_read(self.path).split("\n"), self.path), num_prompts
        )


def parse_prompts(lines: Iterable[str], name: str) -> list[Prompt]:
    """Return one prompt per line that is not blank.

    Args:
        lines: JSON objects.
        name: Where they come from, for errors.

    Raises:
        TreespecError: Names the first line that is not a prompt, or two with one id.
    """
    prompts: list[Prompt] = []
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = _parse(line, f"dataset.path: {name}, line {number}")
        if prompt.id in first_lines:
            raise TreespecError(
                f"dataset.path: {name}, line {number}: id {prompt.id!r} was already "
                f"used in line {first_lines[prompt.id]}; ids must be unique"
            )
        first_lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise TreespecError(
            f"dataset.path: {name} holds no prompts; expected JSON lines with id, "
            "category and turns"
        )
    return prompts


def _read(path: str) -> str:
    file = Path(path).expanduser()
    if not file.exists():
        raise TreespecError(
            f"dataset.path: {path} does not exist (seen from {Path.cwd()})"
        )
    if not file.is_file():
        raise TreespecError(f"dataset.path: {path} must be a file, not a folder")
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rt", encoding="utf-8-sig") as lines:
            return str(lines.read())
    except (OSError, EOFError) as error:
        raise TreespecError(f"dataset.path: cannot read {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise TreespecError(f"dataset.path: {path} must be UTF-8 text") from error


def _parse(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSON that no reader can hold, too
        raise TreespecError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TreespecError(f"{where}: must be an object with id, category and turns")
    turns = row.get("turns")
    if not (isinstance(turns, list) and turns and all(map(_is_text, turns))):
        raise TreespecError(
            f"{where}: turns must be a list of one or more texts, got {turns!r}"
        )
    chat = row.get("chat", True)
    if not isinstance(chat, bool):
        raise TreespecError(f"{where}: chat must be true or false, got {chat!r}")
    if not chat and len(turns) > 1:
        raise TreespecError(f"{where}: chat=false takes one turn, got {len(turns)}")
    return Prompt(
        id=_text(row, "id", where),
        category=_text(row, "category", where),
        turns=tuple(turns),
        chat=chat,
        reference=row.get("reference"),
    )


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not _is_text(value):
        raise TreespecError(f"{where}: {key} must be a text, got {value!r}")
    return str(value)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
