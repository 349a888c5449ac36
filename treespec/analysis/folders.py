"""One run folder as rows and tables, whatever became of the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from treespec.analysis.live import (
    config_columns,
    environment_columns,
    prompt_columns,
    setting_rows,
    summary_columns,
)
from treespec.analysis.schema import PROMPT_SCHEMA, RUN_SCHEMA, Row, table_of
from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json, read_text, read_yaml
from treespec.sinks.parquet import read_table
from treespec.sinks.rows import NODE_SCHEMA, SCHEMA, STEP_SCHEMA
from treespec.sinks.run_folder import (
    CONFIG,
    ENVIRONMENT,
    NODES,
    PROMPTS,
    STATUS,
    STEPS,
    SUMMARY,
    is_done,
)
from treespec.sinks.wandb import flatten
from treespec.untimed import NUM_JOBS_BESIDE, without_speeds

_CLOCKED = ("draft_s", "plan_s", "verify_s", "accept_s", "commit_s", "step_s")
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
    try:
        return _load_folder(folder)
    except TreespecError as error:
        if str(folder) in str(error):
            raise
        raise TreespecError(f"{folder}: {error}; {_WAY_OUT}") from error
    except MALFORMED as error:
        reason = " ".join(str(error).split())
        raise TreespecError(
            f"{folder}: a file holds what layout {SCHEMA} has not "
            f"({type(error).__name__}: {reason}); {_WAY_OUT}"
        ) from error


def _load_folder(folder: Path) -> LoadedRun:
    done = is_done(folder)
    status = _found(read_json, folder / STATUS, needed=done)
    environment = _found(read_json, folder / ENVIRONMENT, needed=done)
    if status:
        expect_schema(str(folder), status.get("schema", 1), environment)
    config = _found(read_yaml, folder / CONFIG, needed=done)
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
    table_of([row], RUN_SCHEMA)  # so that a wrong value is told by its run
    prompts = _prompts(folder / PROMPTS, needed=done)
    if done and len(prompts) != status.get("num_prompts"):
        raise TreespecError(
            f"{folder / PROMPTS}: has {len(prompts)} whole lines, but the run had "
            f"{status.get('num_prompts')!r} prompts; {_WAY_OUT}"
        )
    if summary.get(NUM_JOBS_BESIDE):
        prompts = [without_speeds(prompt) for prompt in prompts]
    steps = _table(folder / STEPS, STEP_SCHEMA, needed=done)
    if summary.get(NUM_JOBS_BESIDE):
        steps = _untimed(steps)
    traced = done and config.get("trace") == "nodes"
    drafted = traced and bool(pc.any(pc.greater(steps["num_nodes"], 0)).as_py())
    return LoadedRun(
        path=folder.absolute(),
        row=row,
        prompts=table_of(prompts, PROMPT_SCHEMA),
        steps=steps,
        nodes=_table(folder / NODES, NODE_SCHEMA, needed=drafted),
        settings=setting_rows("", config),
    )


def _untimed(steps: pa.Table) -> pa.Table:
    """Return steps without the seconds that they took."""
    for place, column in enumerate(STEP_SCHEMA):
        if column.name in _CLOCKED:
            nulls = pa.nulls(len(steps), column.type)
            steps = steps.set_column(place, column, nulls)
    return steps


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
    return read_table(path, schema, _WAY_OUT)


def _found(
    read: Callable[[Path, str], dict[str, Any]], path: Path, *, needed: bool = False
) -> dict[str, Any]:
    """Return what a file holds; nothing if there is none and none is needed."""
    return read(path, _WAY_OUT) if needed or path.exists() else {}
