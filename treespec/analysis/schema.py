"""Columns and types of the five tables, the same wherever the numbers come from.

Whole numbers and truths are pandas' nullable types, words its ``str``; seconds and
rates are ``float64``, where what is not known is NaN. Lists stay Arrow lists, which
cost nothing to load and can be exploded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from treespec.errors import TreespecError
from treespec.files import MALFORMED
from treespec.sinks.rows import NODE_SCHEMA, STEP_SCHEMA

Row = dict[str, Any]

SUMMARY_COLUMNS: Mapping[str, str] = {
    "num_prompts": "num_prompts",
    "num_tokens": "num_tokens",
    "num_steps": "num_steps",
    "speedup": "speedup",
    "speedup_geomean": "speedup_geomean",
    "detectable_speedup": "detectable_speedup",
    "tokens_per_second": "tokens_per_second",
    "baseline_tokens_per_second": "baseline_tokens_per_second",
    "mean_acceptance_length": "mean_acceptance_length",
    "num_accepted_per_step": "num_accepted_per_step",
    "acceptance_rate": "acceptance_rate",
    "node_acceptance": "node_acceptance",
    "optimal_node_acceptance": "optimal_node_acceptance",
    "node_acceptance_gap": "node_acceptance_gap",
    "mean_draft_forwards": "mean_draft_forwards",
    "mean_candidates": "mean_candidates",
    "mean_nodes": "mean_nodes",
    "mean_depth": "mean_depth",
    "skip_rate": "skip_rate",
    "no_draft_rate": "no_draft_rate",
    "draft_share": "time_share.draft",
    "verify_share": "time_share.verify",
    "accept_share": "time_share.accept",
    "commit_share": "time_share.commit",
    "overhead_share": "time_share.overhead",
    "latency_p50_ms": "latency_ms.p50",
    "latency_p90_ms": "latency_ms.p90",
    "baseline_latency_p50_ms": "baseline_latency_ms.p50",
    "baseline_latency_p90_ms": "baseline_latency_ms.p90",
    "ttft_ms": "ttft_ms",
    "throughput_rps": "throughput_rps",
    "wall_s": "wall_s",
    "peak_memory_bytes": "peak_memory_bytes",
    "baseline_step_spread": "baseline_step_spread",
    "num_jobs_beside": "num_jobs_beside",
    "num_repeats": "repeats.num_repeats",
    "repeat_spread": "repeats.speedup_spread",
    "num_identical": "lossless.identical",
    "num_ties": "lossless.ties",
    "num_violations": "lossless.violations",
    "mean_token_logprob": "mean_token_logprob",
    "baseline_mean_token_logprob": "baseline_mean_token_logprob",
}
"""Column of ``runs`` -> dotted key of ``summary.json``."""

_COUNTS = {
    "num_prompts",
    "num_tokens",
    "num_steps",
    "num_repeats",
    "peak_memory_bytes",
} | {
    "num_identical",
    "num_ties",
    "num_violations",
    "num_jobs_beside",
}
_WORDS = (
    "run",
    "sweep",
    "folder",
    "status",
    "error",
    "started_at",
    "ended_at",
    "treespec",
    "device",
    "dtype",
    "target",
    "draft",
    "drafter",
    "policy",
    "controller",
    "acceptance",
    "verifier",
    "baseline",
    "trace",
)
_SETTINGS = ("max_depth", "max_width", "max_nodes", "max_new_tokens", "max_concurrent")

RUN_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _WORDS),
        ("temperature", pa.float64()),
        *((name, pa.int64()) for name in (*_SETTINGS, "seed")),
        ("speedup_low", pa.float64()),
        ("speedup_high", pa.float64()),
        *(
            (name, pa.int64() if name in _COUNTS else pa.float64())
            for name in SUMMARY_COLUMNS
        ),
    ]
)
SETTING_SCHEMA = pa.schema([(n, pa.string()) for n in ("run", "key", "value")])
_BOTH_MODES = (
    ("num_tokens", pa.int64()),
    ("prefill_s", pa.float64()),
    ("decode_s", pa.float64()),
    ("tokens_per_second", pa.float64()),
    ("finish_reason", pa.string()),
    ("text", pa.string()),
    ("tokens", pa.list_(pa.int64())),
    ("token_times_s", pa.list_(pa.float64())),
)
PROMPT_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("prompt_idx", pa.int32()),
        ("id", pa.string()),
        ("category", pa.string()),
        ("turn", pa.int32()),
        ("lossless", pa.string()),
        ("divergence_index", pa.int64()),
        ("divergence_margin", pa.float64()),
        ("divergence_noise", pa.float64()),
        ("mean_token_logprob", pa.float64()),
        ("baseline_mean_token_logprob", pa.float64()),
        ("num_prompt_tokens", pa.int64()),
        ("prompt_tokens", pa.list_(pa.int64())),
        ("speedup", pa.float64()),
        ("num_steps", pa.int64()),
        ("num_nodes", pa.int64()),
        ("num_accepted", pa.int64()),
        ("num_committed", pa.int64()),
        ("mean_acceptance_length", pa.float64()),
        ("num_accepted_per_step", pa.float64()),
        ("acceptance_rate", pa.float64()),
        *_BOTH_MODES,
        *((f"baseline_{name}", kind) for name, kind in _BOTH_MODES),
    ]
)
RUN_STEP_SCHEMA = STEP_SCHEMA.insert(0, pa.field("run", pa.string()))
RUN_NODE_SCHEMA = NODE_SCHEMA.insert(0, pa.field("run", pa.string()))

_PANDAS_TYPES = {
    pa.string(): pd.StringDtype(na_value=np.nan),  # NA == "word" is False, not NA
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


def frame_of(tables: Sequence[pa.Table], schema: pa.Schema) -> pd.DataFrame:
    """Return tables of one schema, one below the other, as a frame."""
    table = pa.concat_tables([schema.empty_table(), *tables])
    frame: pd.DataFrame = table.to_pandas(types_mapper=_pandas_type)
    return frame


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Return rows as a table; what a row lacks is not known.

    Raises:
        TreespecError: A value is not of its column's type.
    """
    given = list(rows)
    try:
        return pa.Table.from_pylist(given, schema=schema)
    except MALFORMED as error:
        name, value = _misfit(given, schema)
        raise TreespecError(
            f"{name} must be of type {schema.field(name).type}, got {value!r}"
        ) from error


def _misfit(rows: Sequence[Row], schema: pa.Schema) -> tuple[str, object]:
    """Return the first value that is not of its column's type, and the column."""
    for row in rows:
        for field in schema:
            try:
                pa.array([row.get(field.name)], type=field.type)
            except MALFORMED:
                return field.name, row.get(field.name)
    raise AssertionError("some value does not fit")


def _pandas_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return pd.ArrowDtype(kind)
    return _PANDAS_TYPES.get(kind)
