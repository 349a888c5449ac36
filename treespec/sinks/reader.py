"""Reads a run folder back, and believes nothing that does not add up."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from treespec.errors import TreespecError
from treespec.metrics import Summary, summarize
from treespec.outcome import PromptOutcome
from treespec.sinks.rows import (
    MODES,
    NODE_SCHEMA,
    STEP_SCHEMA,
    Mode,
    Row,
    expect_keys,
    read_outcome,
)
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

# Prompt index -> mode -> rows in the order in which they were written.
RowsByPrompt = defaultdict[int, dict[Mode, list[Row]]]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run, as it was recorded.

    Attributes:
        folder: Where it was read from.
        config: The resolved configuration.
        environment: What it ran on.
        status: When it ran and how it ended.
        outcomes: All prompts, with all their records.
        summary: The numbers, which were recomputed from ``outcomes`` and agree.
    """

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    status: dict[str, Any]
    outcomes: tuple[PromptOutcome, ...]
    summary: Summary


def read_run(folder: Path) -> Run:
    """Return a finished run.

    Raises:
        TreespecError: The run is not finished (killed, failed, still running), a file
            is missing or torn, a key is missing or unknown, or the numbers of
            ``summary.json`` are not those of the records.
    """
    if not is_done(folder):
        raise _unfinished(folder)
    lines = _read(folder / PROMPTS).splitlines()
    steps = _read_table(folder / STEPS, STEP_SCHEMA)
    nodes = _no_rows()
    if (folder / NODES).exists():
        nodes = _read_table(folder / NODES, NODE_SCHEMA)
    outcomes = tuple(
        _outcome(folder / PROMPTS, index, line, steps, nodes)
        for index, line in enumerate(lines)
    )
    if len(steps) > len(lines):
        raise TreespecError(f"{folder / STEPS}: has steps of prompts not in {PROMPTS}")
    summary = _read_json(folder / SUMMARY)
    _check_summary(folder / SUMMARY, summary, outcomes)
    return Run(
        folder=folder,
        config=_read_yaml(folder / CONFIG),
        environment=_read_json(folder / ENVIRONMENT),
        status=_read_json(folder / STATUS),
        outcomes=outcomes,
        summary=summary,
    )


def _unfinished(folder: Path) -> TreespecError:
    """Return the error that tells what a run without ``DONE`` has left behind."""
    if not (folder / STATUS).exists():
        return TreespecError(f"{folder}: not a run folder: it has no {STATUS}")
    status = _read_json(folder / STATUS)
    lines = _read(folder / PROMPTS).splitlines(keepends=True)
    num_torn = sum(not line.endswith("\n") for line in lines)
    torn = f" and a torn line {len(lines)}" if num_torn else ""
    return TreespecError(
        f"{folder}: the run is not finished (status {status['status']!r}, "
        f"{len(lines) - num_torn} complete prompts{torn} in {PROMPTS}): run it again"
    )


def _outcome(
    path: Path, index: int, line: str, steps: RowsByPrompt, nodes: RowsByPrompt
) -> PromptOutcome:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or row.get("prompt_idx") != index:
            raise TreespecError(f"must be an object with prompt_idx {index}")
        return read_outcome(row, steps[index], nodes[index])
    except (json.JSONDecodeError, RecursionError) as error:
        raise TreespecError(f"{path}: line {index + 1}: not JSON: {error}") from error
    except TreespecError as error:
        raise TreespecError(f"{path}: line {index + 1}: {error}") from error


def _no_rows() -> RowsByPrompt:
    return defaultdict(lambda: {mode: [] for mode in MODES})


def _read_table(path: Path, schema: pa.Schema) -> RowsByPrompt:
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise TreespecError(f"{path}: cannot be read: {error}") from error
    try:
        expect_keys(dict.fromkeys(table.column_names), schema.names)
    except TreespecError as error:
        raise TreespecError(f"{path}: {error}") from error
    rows = _no_rows()
    for row in table.to_pylist():
        if row["mode"] not in MODES:
            raise TreespecError(f"{path}: unknown mode {row['mode']!r}")
        rows[row["prompt_idx"]][row["mode"]].append(row)
    return rows


def _check_summary(
    path: Path, summary: Summary, outcomes: tuple[PromptOutcome, ...]
) -> None:
    """Compare with a summary recomputed from the records.

    Raises:
        TreespecError: Names the first number that differs.
    """
    given = ("wall_s", "peak_memory_bytes", "baseline")
    for name in given:
        if name not in summary:
            raise TreespecError(f"{path}: missing key {name!r}")
    recomputed = summarize(outcomes, *(summary[name] for name in given))
    where = _first_difference(summary, recomputed, "")
    if where is not None:
        raise TreespecError(
            f"{path}: {where.lstrip('.')} is not what the records give: the files are "
            "not of one run, or were written by another version of treespec"
        )


def _first_difference(left: Any, right: Any, where: str) -> str | None:
    """Return the dotted path of the first difference, or ``None``."""
    if isinstance(left, list) and isinstance(right, list):
        left, right = dict(enumerate(left)), dict(enumerate(right))
    if isinstance(left, dict) and isinstance(right, dict):
        for key in {**right, **left}:
            if key not in left or key not in right:
                return f"{where}.{key}"
            found = _first_difference(left[key], right[key], f"{where}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(left, float) and isinstance(right, float):
        return None if math.isclose(left, right, rel_tol=1e-9) else where
    return None if left == right else where


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise TreespecError(f"{path}: cannot be read: {reason}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    text = _read(path)
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise TreespecError(f"{path}: not YAML: {reason}") from error
    if not isinstance(content, dict):
        raise TreespecError(f"{path}: is not the configuration of a run")
    return content


def _read_json(path: Path) -> dict[str, Any]:
    text = _read(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TreespecError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TreespecError(f"{path}: must hold one JSON object")
    return content
