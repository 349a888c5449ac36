"""How records lie in files: one line per prompt, one row per step or node.

Names of columns are names of record fields, so a file explains itself by
``treespec.types``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

import pyarrow as pa

from treespec.errors import TreespecError
from treespec.outcome import Divergence, PromptOutcome, Quality, Score
from treespec.types import GenerationResult, NodeTrace, StepRecord

Row = dict[str, Any]
Mode = Literal["speculative", "baseline"]

MODES: tuple[Mode, ...] = ("speculative", "baseline")
SCHEMA = 3
"""Number of the layout of a run's files; raised when a name or a meaning changes.

Runs from before there was a number are of layout 1.
"""
_OWNER = [
    ("prompt_idx", pa.int32()),
    ("id", pa.string()),
    ("mode", pa.string()),
]
STEP_SCHEMA = pa.schema(
    [
        *_OWNER,
        ("step", pa.int32()),
        ("num_candidates", pa.int32()),
        ("num_nodes", pa.int32()),
        ("depth", pa.int32()),
        ("width", pa.int32()),
        ("nodes_by_depth", pa.list_(pa.int32())),
        ("num_accepted", pa.int32()),
        ("num_committed", pa.int32()),
        ("accepted_ranks", pa.list_(pa.int32())),
        ("accepted_sources", pa.list_(pa.string())),
        ("next_kind", pa.string()),
        ("num_draft_forwards", pa.int32()),
        ("draft_s", pa.float64()),
        ("plan_s", pa.float64()),
        ("verify_s", pa.float64()),
        ("accept_s", pa.float64()),
        ("commit_s", pa.float64()),
        ("step_s", pa.float64()),
        ("max_depth", pa.int32()),
        ("max_width", pa.int32()),
        ("max_nodes", pa.int32()),
        ("budget_by", pa.string()),
        ("judged_sources", pa.list_(pa.string())),
        ("judged_ranks", pa.list_(pa.int32())),
        ("judged_depths", pa.list_(pa.int32())),
        ("judged_probs", pa.list_(pa.float64())),
        ("judged_accepted", pa.list_(pa.bool_())),
        ("num_unread", pa.int32()),
        ("expected_accepted", pa.float64()),
        ("expected_s", pa.float64()),
        ("reason", pa.string()),
    ]
)
NODE_SCHEMA = pa.schema(
    [
        *_OWNER,
        ("step", pa.int32()),
        ("node", pa.int32()),
        ("parent", pa.int32()),
        ("depth", pa.int32()),
        ("rank", pa.int32()),
        ("token", pa.int32()),
        ("source", pa.string()),
        ("draft_prob", pa.float64()),
        ("target_prob", pa.float64()),
        ("verdict", pa.string()),
        ("optimal_acceptance", pa.float64()),
    ]
)
_SUMMED = (
    "num_candidates",
    "num_nodes",
    "num_accepted",
    "num_committed",
    "num_draft_forwards",
    "draft_s",
    "plan_s",
    "verify_s",
    "accept_s",
    "commit_s",
    "step_s",
)
_RESULT_KEYS = (
    "tokens",
    "text",
    "finish_reason",
    "seed",
    "prefill_s",
    "decode_s",
    "token_times_s",
)
_PROMPT_KEYS = (
    "prompt_idx",
    "id",
    "category",
    "turn",
    "lossless",
    "divergence",
    "quality",
    "scores",
    "prompt_tokens",
    *MODES,
)


def prompt_row(index: int, outcome: PromptOutcome) -> Row:
    """Return a prompt's line, with the sums of its step records."""
    return {
        "prompt_idx": index,
        "id": outcome.id,
        "category": outcome.category,
        "turn": outcome.turn,
        "lossless": outcome.lossless,
        "divergence": None
        if outcome.divergence is None
        else asdict(outcome.divergence),
        "quality": None if outcome.quality is None else asdict(outcome.quality),
        "scores": [asdict(score) for score in outcome.scores],
        "prompt_tokens": list(outcome.speculative.prompt_tokens),
        "speculative": _result_row(outcome.speculative),
        "baseline": _result_row(outcome.baseline),
    }


def _result_row(result: GenerationResult) -> Row:
    row = {name: getattr(result, name) for name in _RESULT_KEYS}
    return {**row, "sums": step_sums(result.steps)}


def step_sums(steps: Sequence[StepRecord]) -> Row:
    """Return the sums over steps of what can be summed, and their number."""
    sums = {name: sum(getattr(step, name) for step in steps) for name in _SUMMED}
    return {"num_steps": len(steps), **sums}


def step_rows(index: int, outcome: PromptOutcome) -> list[Row]:
    """Return the rows of a prompt's steps, both modes."""
    return [
        row
        for mode, result in _results(outcome)
        for row in _rows(index, outcome.id, mode, result.steps)
    ]


def node_rows(index: int, outcome: PromptOutcome) -> list[Row]:
    """Return the rows of a prompt's traced nodes, both modes."""
    return [
        row
        for mode, result in _results(outcome)
        for row in _rows(index, outcome.id, mode, result.traces)
    ]


def _results(outcome: PromptOutcome) -> Iterator[tuple[Mode, GenerationResult]]:
    yield "speculative", outcome.speculative
    yield "baseline", outcome.baseline


def _rows(
    index: int, prompt_id: str, mode: Mode, records: Iterable[StepRecord | NodeTrace]
) -> Iterator[Row]:
    for record in records:
        values = {f.name: getattr(record, f.name) for f in fields(record)}
        yield {"prompt_idx": index, "id": prompt_id, "mode": mode, **values}


def read_outcome(
    row: Row, steps: Mapping[Mode, list[Row]], nodes: Mapping[Mode, list[Row]]
) -> PromptOutcome:
    """Return the outcome that a prompt's line and its rows were written from.

    Raises:
        TreespecError: A key is missing or unknown, or the line's sums are not those
            of the rows. The caller says in which file and line.
    """
    expect_keys(row, _PROMPT_KEYS)
    divergence = row["divergence"]
    if divergence is not None:
        expect_keys(divergence, [f.name for f in fields(Divergence)])
    quality = row["quality"]
    if quality is not None:
        expect_keys(quality, [f.name for f in fields(Quality)])
    return PromptOutcome(
        id=row["id"],
        category=row["category"],
        turn=row["turn"],
        lossless=row["lossless"],
        divergence=None if divergence is None else Divergence(**divergence),
        quality=None if quality is None else Quality(**quality),
        scores=tuple(map(_read_score, row["scores"])),
        speculative=_read_result(row, "speculative", steps, nodes),
        baseline=_read_result(row, "baseline", steps, nodes),
    )


def _read_score(row: Row) -> Score:
    expect_keys(row, [f.name for f in fields(Score)])
    return Score(**_tuples(row))


def _read_result(
    row: Row,
    mode: Mode,
    steps: Mapping[Mode, list[Row]],
    nodes: Mapping[Mode, list[Row]],
) -> GenerationResult:
    values = dict(row[mode])
    expect_keys(values, (*_RESULT_KEYS, "sums"))
    records = tuple(StepRecord(**_record_values(step)) for step in steps[mode])
    sums = values.pop("sums")
    if sums != step_sums(records):
        raise TreespecError(
            f"the sums of {mode!r} are not those of its rows in steps.parquet"
        )
    return GenerationResult(
        prompt_tokens=tuple(row["prompt_tokens"]),
        steps=records,
        traces=tuple(NodeTrace(**_record_values(node)) for node in nodes[mode]),
        **_tuples(values),
    )


def _record_values(row: Row) -> Row:
    owner = {name for name, _ in _OWNER}
    return _tuples({name: row[name] for name in row if name not in owner})


def _tuples(row: Row) -> Row:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in row.items()
    }


def expect_keys(row: Mapping[str, Any], expected: Iterable[str]) -> None:
    """Refuse a row that lacks a key or has one more.

    Raises:
        TreespecError: Names the first such keys.
    """
    known = set(expected)
    unknown, missing = sorted(row.keys() - known), sorted(known - row.keys())
    if unknown:
        raise TreespecError(f"unknown key {unknown[0]!r}")
    if missing:
        raise TreespecError(f"missing key {missing[0]!r}")
