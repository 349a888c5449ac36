"""Reads a table of records, and refuses one of another layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from treespec.errors import TreespecError
from treespec.sinks.rows import SCHEMA, expect_keys


def read_table(path: Path, schema: pa.Schema, way_out: str = "") -> pa.Table:
    """Return the table in a file.

    Args:
        path: The file.
        schema: Its columns and their types.
        way_out: What to do if it cannot be read, for the message.

    Raises:
        TreespecError: There is no such file, it is torn, or has other columns.
    """
    end = f"; {way_out}" if way_out else ""
    with _opened(path, end) as file:
        table = file.read(use_threads=False)
    try:
        expect_keys(dict.fromkeys(table.column_names), schema.names)
    except TreespecError as error:
        raise TreespecError(
            f"{path}: its columns are not those of layout {SCHEMA}: {error}{end}"
        ) from error
    if table.schema != schema:
        raise TreespecError(
            f"{path}: its columns have not the types and order of layout {SCHEMA}{end}"
        )
    return table


def check_table(path: Path) -> None:
    """Refuse a file that is no table any more, from its footer alone.

    Raises:
        TreespecError: There is no such file, or it is torn.
    """
    with _opened(path):
        pass


@contextmanager
def _opened(path: Path, end: str = "") -> Iterator[pq.ParquetFile]:
    try:
        # Four times as fast as read_table where files are small and many.
        with path.open("rb") as opened, pq.ParquetFile(opened) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise TreespecError(f"{path}: cannot be read: {reason}{end}") from error
