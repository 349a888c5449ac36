"""One run folder as rows and tables, whatever became of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from treespec.analysis.live import (
    config_columns,
    environment_columns,
    prompt_columns,
    setting_rows,
    summary_columns,
)
from treespec.analysis.schema import PROMPT_SCHEMA, Row, table_of
from treespec.errors import TreespecError
from treespec.files import read_json, read_text, read_yaml
from treespec.sinks.rows import NODE_SCHEMA, SCHEMA, STEP_SCHEMA
from treespec.sinks.run_folder import (
    CONFIG,
    DONE,
    ENVIRONMENT,
    NODES,
    PROMPTS,
    STATUS,
    STEPS,
    SUMMARY,
)
from treespec.sinks.wandb import flatten
from treespec.untimed import NUM_JOBS_BESIDE, without_speeds

_WAY_OUT = "run it again with force=true, or load it with the version that wrote it"


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """One run, before it has a name among others.

    Attributes:
        path: Its name among others: the folder, its end the run's key.
        row: Its row of ``runs``.
        prompts: Its prompts, columns of ``PROMPT_SCHEMA``.
        steps: Its steps, columns of ``STEP_SCHEMA``.
        nodes: Its nodes, columns of ``NODE_SCHEMA``.
        settings: Its configuration, row by row.
    """

    path: Path
    row: Row
    prompts: pa.Table
    steps: pa.Table
    nodes: pa.Table
    settings: list[Row]


def load_folder(folder: Path) -> LoadedRun:
    """Return what a run folder has; of a run that did not end, what is whole.

    Raises:
        TreespecError: A file is torn, or of another layout.
    """
    done = (folder / DONE).exists()
    status = _found(read_json, folder / STATUS)
    environment = _found(read_json, folder / ENVIRONMENT)
    if status:
        expect_schema(str(folder), status.get("schema", 1), environment)
    config = _found(read_yaml, folder / CONFIG)
    summary = _found(read_json, folder / SUMMARY, needed=done)
    row = {
        "folder": str(folder),
        "sweep": config.get("sweep_name"),
        "status": status_word(status, done),
        "error": status.get("error"),
        "started_at": status.get("started_at"),
        "ended_at": status.get("ended_at"),
        **environment_columns(environment),
        **config_columns(config),
        **summary_columns(flatten(summary)),
    }
    prompts = _prompts(folder / PROMPTS, needed=done)
    if summary.get(NUM_JOBS_BESIDE):
        prompts = [without_speeds(prompt) for prompt in prompts]
    return LoadedRun(
        path=folder.absolute(),
        row=row,
        prompts=table_of(prompts, PROMPT_SCHEMA),
        steps=_table(folder / STEPS, STEP_SCHEMA, needed=done),
        nodes=_table(folder / NODES, NODE_SCHEMA, needed=False),
        settings=setting_rows("", config),
    )


def status_word(status: Mapping[str, Any], done: bool) -> str:
    """Return how a run ended; ``DONE`` has the last word on ``done``.

    A run that was killed still calls itself ``running``.
    """
    word = str(status.get("status", "never begun"))
    return "unfinished" if word == "done" and not done else word


def expect_schema(name: str, found: object, environment: Mapping[str, Any]) -> None:
    """Refuse a run whose files are of another layout.

    Raises:
        TreespecError: Names the run, both layouts, and who wrote it.
    """
    if found != SCHEMA:
        writer = environment_columns(environment)["treespec"] or "an unknown version"
        raise TreespecError(
            f"{name} was written by treespec {writer} in layout {found!r}, but this "
            f"version reads layout {SCHEMA}; {_WAY_OUT}"
        )


def _prompts(path: Path, *, needed: bool) -> list[Row]:
    if not path.exists() and not needed:
        return []
    rows, text = [], read_text(path, _WAY_OUT)
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):  # a kill cut it, or it is just being written
            break
        try:
            rows.append(prompt_columns(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TreespecError(
                f"{path}: line {number} is no prompt of layout {SCHEMA} "
                f"({type(error).__name__}: {error}); {_WAY_OUT}"
            ) from error
    return rows


def _table(path: Path, schema: pa.Schema, *, needed: bool) -> pa.Table:
    if not path.exists() and not needed:
        return schema.empty_table()
    try:
        # Four times as fast as read_table where files are small and many.
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise TreespecError(f"{path}: cannot be read: {error}; {_WAY_OUT}") from error
    if table.schema != schema:
        found, known = set(table.column_names), set(schema.names)
        other = sorted(found ^ known) or ["types"]
        raise TreespecError(
            f"{path}: its columns are not those of layout {SCHEMA} ({other[0]}); "
            f"{_WAY_OUT}"
        )
    return table


def _found(
    read: Callable[[Path, str], dict[str, Any]], path: Path, *, needed: bool = False
) -> dict[str, Any]:
    """Return what a file holds; nothing if there is none and none is needed."""
    return read(path, _WAY_OUT) if needed or path.exists() else {}
