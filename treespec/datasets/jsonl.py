"""Prompts from a file of JSON lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treespec.datasets.base import (
    AbstractDataset,
    CodeTest,
    Prompt,
    choose,
    turn_id,
)
from treespec.datasets.files import Row, file_rows
from treespec.errors import TreespecError


@dataclass(frozen=True, slots=True)
class JsonlDataset(AbstractDataset):
    """A ``.jsonl`` or ``.jsonl.gz`` file, one prompt a line.

    Each line is an object with ``id``, ``category`` and ``turns`` (a list of user
    messages), and perhaps ``chat`` (false: continue the one turn as raw text) and
    ``reference`` (a good answer, in any form; see ``Prompt``). ``test`` and
    ``entry_point`` tell how a function is tested, after the code in ``prompt`` or, if
    there is none, in the one raw turn. Other keys are left alone.

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
        return choose(prompts_of(file_rows(self.path), self.path), num_prompts)


def prompts_of(rows: Iterable[Row], name: str) -> list[Prompt]:
    """Return one prompt per row.

    Args:
        rows: Objects with ``id``, ``category``, ``turns`` and so on.
        name: Where they come from, for errors.

    Raises:
        TreespecError: Names the first row that is not a prompt, or two with one id.
    """
    prompts: list[Prompt] = []
    first_lines: dict[str, int] = {}
    for row in rows:
        prompt = _prompt(row)
        for turn in range(1, len(prompt.turns) + 1):
            taken = first_lines.setdefault(turn_id(prompt.id, turn), row.number)
            if taken != row.number:
                raise TreespecError(
                    f"{row.where}: id {turn_id(prompt.id, turn)!r} was already used in "
                    f"line {taken}; ids must be unique"
                )
        prompts.append(prompt)
    if not prompts:
        raise TreespecError(
            f"dataset.path: {name} holds no prompts; expected JSON lines with id, "
            "category and turns"
        )
    return prompts


def _prompt(row: Row) -> Prompt:
    content, where = row.content, row.where
    turns = content.get("turns")
    if not (isinstance(turns, list) and turns and all(map(_is_text, turns))):
        raise TreespecError(
            f"{where}: turns must be a list of one or more texts, got {turns!r}"
        )
    chat = content.get("chat", True)
    if not isinstance(chat, bool):
        raise TreespecError(f"{where}: chat must be true or false, got {chat!r}")
    if not chat and len(turns) > 1:
        raise TreespecError(f"{where}: chat=false takes one turn, got {len(turns)}")
    return Prompt(
        id=_line(row, "id"),
        category=_line(row, "category"),
        turns=tuple(turns),
        chat=chat,
        reference=content.get("reference"),
        code_test=_code_test(row, turns[0]),
    )


def _code_test(row: Row, turn: str) -> CodeTest | None:
    if not {"test", "entry_point"} <= row.content.keys():
        return None
    known = {"prompt": turn, **row.content}
    before = Row(row.number, row.where, known)
    names = ("prompt", "test", "entry_point")
    return CodeTest(*(_text(before, name) for name in names))


def _line(row: Row, key: str) -> str:
    """Return a text that tables have room for."""
    value = _text(row, key)
    if not value.isprintable():
        raise TreespecError(
            f"{row.where}: {key} must be in one line, without control characters, got "
            f"{value!r}"
        )
    return value


def _text(row: Row, key: str) -> str:
    value = row.content.get(key)
    if not _is_text(value):
        raise TreespecError(f"{row.where}: {key} must be a text, got {value!r}")
    return str(value)


def _is_text(value: object) -> bool:
    if not isinstance(value, str) or not value:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
