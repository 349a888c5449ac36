"""Whether the files of a finished run are still what was written."""

from __future__ import annotations

import json
from pathlib import Path

from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json, read_text, read_yaml
from treespec.sinks.parquet import check_table
from treespec.sinks.rows import SCHEMA
from treespec.sinks.run_folder import (
    CONFIG,
    ENVIRONMENT,
    NODES,
    PROMPTS,
    STATUS,
    STEPS,
    SUMMARY,
)
from treespec.sinks.terminal import render


def damage(folder: Path) -> str | None:
    """Return what is broken of a finished run; ``None`` if all its files are whole.

    Looks for what a full disk, a torn copy or an editor does: a file that is missing,
    cut or no longer of its format, a summary without its numbers. A run of another
    layout is whole as long as its files are: the version that wrote it can read it.
    """
    try:
        status = read_json(folder / STATUS)
        read_json(folder / ENVIRONMENT)
        summary = read_json(folder / SUMMARY)
        read_yaml(folder / CONFIG)
        _check_lines(folder / PROMPTS, status.get("num_prompts"))
        check_table(folder / STEPS)
        if (folder / NODES).exists():
            check_table(folder / NODES)
        if status.get("schema") == SCHEMA:
            render(summary)
    except TreespecError as error:
        return str(error)
    except MALFORMED as error:
        return f"{folder / SUMMARY}: is no summary ({type(error).__name__}: {error})"
    return None


def _check_lines(path: Path, num_prompts: object) -> None:
    """Refuse a file that has not one JSON line for each prompt."""
    lines = read_text(path).splitlines()
    if len(lines) != num_prompts:
        raise TreespecError(
            f"{path}: has {len(lines)} lines, but the run had {num_prompts!r} prompts"
        )
    for number, line in enumerate(lines, start=1):
        try:
            json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TreespecError(f"{path}: line {number}: not JSON: {error}") from error
