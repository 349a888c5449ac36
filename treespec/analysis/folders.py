"""One run folder as rows and tables, whatever became of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from treespec.analysis.live import (
    config_columns,
    environment_columns,
    prompt_columns,
    setting_rows,
    summary_columns,
)
from treespec.analysis.schema import PROMPT_SCHEMA, Row, table_of
from treespec.errors import TreespecError
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

# The C parser is ten times as fast: a sweep has hundreds of configurations.
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
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
    status = _json(folder / STATUS)
    environment = _json(folder / ENVIRONMENT)
    if status:
        expect_schema(str(folder), status.get("schema", 1), environment)
    config = _yaml(folder / CONFIG)
    summary = _json(folder / SUMMARY, needed=done)
    lines = _text(folder / PROMPTS, needed=done)
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
    prompts = _prompts(folder / PROMPTS, lines)
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


def _prompts(path: Path, text: str) -> list[Row]:
    rows = []
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


def _json(path: Path, *, needed: bool = False) -> dict[str, Any]:
    text = _text(path, needed=needed)
    if not text:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TreespecError(f"{path}: not JSON: {error}; {_WAY_OUT}") from error
    if not isinstance(content, dict):
        raise TreespecError(f"{path}: must hold one JSON object; {_WAY_OUT}")
    return content


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(_text(path, needed=False), Loader=_YAML)
    except (yaml.YAMLError, RecursionError) as error:
        first = str(error).splitlines()[0]
        raise TreespecError(f"{path}: not YAML: {first}; {_WAY_OUT}") from error
    return content if isinstance(content, dict) else {}


def _text(path: Path, *, needed: bool) -> str:
    if not path.exists() and not needed:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise TreespecError(f"{path}: cannot be read: {reason}; {_WAY_OUT}") from error
