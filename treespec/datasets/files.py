"""Rows of a data file: JSON lines, packed or not, or Parquet."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treespec.errors import TreespecError


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data file.

    Attributes:
        number: Its line, counted from 1.
        where: Its place, for errors: key, file and line.
        content: Its values.
    """

    number: int
    where: str
    content: dict[str, Any]


def file_rows(path: str) -> list[Row]:
    """Return the rows of a ``.jsonl``, ``.jsonl.gz`` or ``.parquet`` file.

    Raises:
        TreespecError: Names the file and the first line that is no object.
    """
    file = Path(path).expanduser()
    if not file.exists():
        raise TreespecError(
            f"dataset.path: {path} does not exist (seen from {Path.cwd()})"
        )
    if not file.is_file():
        raise TreespecError(f"dataset.path: {path} must be a file, not a folder")
    if file.suffix == ".parquet":
        return list(_parquet_rows(file, path))
    return list(line_rows(_text(file, path).split("\n"), path))


def line_rows(lines: Iterable[str], name: str) -> Iterator[Row]:
    """Yield one row per line that is not blank.

    Args:
        lines: JSON objects.
        name: Where they come from, for errors.

    Raises:
        TreespecError: Names the first line that is no object.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"dataset.path: {name}, line {number}"
            yield Row(number, where, _object(line, where))


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:  # JSON that no reader can hold, too
        raise TreespecError(f"{where}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TreespecError(f"{where}: must be an object with id, category and turns")
    return content


def _parquet_rows(file: Path, name: str) -> Iterator[Row]:
    try:
        content = pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise TreespecError(f"dataset.path: cannot read {name}: {reason}") from error
    for number, row in enumerate(content, start=1):
        yield Row(number, f"dataset.path: {name}, row {number}", row)


def _text(file: Path, name: str) -> str:
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rt", encoding="utf-8-sig") as lines:
            return str(lines.read())
    except (OSError, EOFError, zlib.error) as error:
        raise TreespecError(f"dataset.path: cannot read {name}: {error}") from error
    except UnicodeDecodeError as error:
        raise TreespecError(f"dataset.path: {name} must be UTF-8 text") from error
