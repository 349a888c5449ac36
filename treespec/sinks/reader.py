"""Reads a run folder back, and believes nothing that does not add up."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json, read_text, read_yaml
from treespec.metrics import Summary, summarize
from treespec.outcome import PromptOutcome
from treespec.sinks.parquet import read_table
from treespec.sinks.rows import (
    MODES,
    NODE_SCHEMA,
    STEP_SCHEMA,
    Mode,
    Row,
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
from treespec.untimed import NUM_JOBS_BESIDE, with_neighbours

_LEVELS = ("", "*/", "*/*/")
_MOST_TOKENS = 2**31
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
    lines = read_text(folder / PROMPTS).splitlines()
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
    summary = read_json(folder / SUMMARY)
    _check_summary(folder / SUMMARY, summary, outcomes)
    return Run(
        folder=folder,
        config=read_yaml(folder / CONFIG),
        environment=read_json(folder / ENVIRONMENT),
        status=read_json(folder / STATUS),
        outcomes=outcomes,
        summary=summary,
    )


def run_folders(source: Path) -> list[Path]:
    """Return the run folders at most two levels below a folder, sorted."""
    found = {
        path.parent
        for level in _LEVELS
        for name in (CONFIG, STATUS)
        for path in source.glob(level + name)
    }
    # W&B keeps files of the same names inside of a run's folder.
    return sorted(folder for folder in found if not _is_wandb(folder))


def _is_wandb(folder: Path) -> bool:
    """Return whether W&B wrote a folder; by its name alone a sweep might be meant."""
    return any(any(place.glob("*.wandb")) for place in (folder, folder.parent))


def _unfinished(folder: Path) -> TreespecError:
    """Return the error that tells what a run without ``DONE`` has left behind."""
    if not folder.is_dir():
        return TreespecError(f"{folder}: there is no such folder")
    if not (folder / STATUS).exists():
        inside = sorted(path.parent for path in folder.glob(f"*/{STATUS}"))
        hint = f"; it holds runs, such as {inside[0]}" if inside else ""
        return TreespecError(f"{folder}: not a run folder: it has no {STATUS}{hint}")
    status = read_json(folder / STATUS)
    lines = read_text(folder / PROMPTS).splitlines(keepends=True)
    num_torn = sum(not line.endswith("\n") for line in lines)
    torn = f" and a torn line {len(lines)}" if num_torn else ""
    return TreespecError(
        f"{folder}: the run is not finished (status {status.get('status')!r}, "
        f"{len(lines) - num_torn} complete prompts{torn} in {PROMPTS}): run it again"
    )


def _outcome(
    path: Path, index: int, line: str, steps: RowsByPrompt, nodes: RowsByPrompt
) -> PromptOutcome:
    try:
        row = json.loads(line)
        if not isinstance(row, dict) or row.get("prompt_idx") != index:
            raise TreespecError(f"must be an object with prompt_idx {index}")
        outcome = read_outcome(row, steps[index], nodes[index])
        _check_values(outcome)
        return outcome
    except (json.JSONDecodeError, RecursionError) as error:
        raise TreespecError(f"{path}: line {index + 1}: not JSON: {error}") from error
    except TreespecError as error:
        raise TreespecError(f"{path}: line {index + 1}: {error}") from error
    except MALFORMED as error:
        raise TreespecError(
            f"{path}: line {index + 1}: no prompt ({type(error).__name__}: {error})"
        ) from error


def _check_values(outcome: PromptOutcome) -> None:
    """Refuse names that are no texts, and tokens that no tokenizer has.

    Raises:
        TreespecError: Says which.
    """
    for name in ("id", "category", "lossless"):
        value = getattr(outcome, name)
        if not isinstance(value, str):
            raise TreespecError(f"{name} must be a text, got {value!r}")
    for result in (outcome.speculative, outcome.baseline):
        for token in (*result.prompt_tokens, *result.tokens):
            is_id = isinstance(token, int) and not isinstance(token, bool)
            if not (is_id and 0 <= token < _MOST_TOKENS):
                raise TreespecError(f"a token must be an id, got {token!r}")


def _no_rows() -> RowsByPrompt:
    return defaultdict(lambda: {mode: [] for mode in MODES})


def _read_table(path: Path, schema: pa.Schema) -> RowsByPrompt:
    rows = _no_rows()
    for row in read_table(path, schema).to_pylist():
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
    try:
        recomputed = summarize(outcomes, *(summary[name] for name in given))
        if NUM_JOBS_BESIDE in summary:
            recomputed = with_neighbours(recomputed, summary[NUM_JOBS_BESIDE])
    except MALFORMED as error:
        raise TreespecError(
            f"{path}: the records hold what is no number ({type(error).__name__}: "
            f"{error})"
        ) from error
    where = _first_difference(summary, recomputed, "")
    if where is not None:
        where = where.lstrip(".")
        name = where if where.isprintable() else repr(where)  # of a category, say
        raise TreespecError(
            f"{path}: {name} is not what the records give: the files are "
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
