"""The tables of outcomes in memory, and the rows that every source shares."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from treespec.analysis.results import Results
from treespec.analysis.schema import (
    PROMPT_SCHEMA,
    RUN_NODE_SCHEMA,
    RUN_SCHEMA,
    RUN_STEP_SCHEMA,
    SETTING_SCHEMA,
    SUMMARY_COLUMNS,
    Row,
    frame_of,
    table_of,
)
from treespec.metrics import summarize
from treespec.outcome import PromptOutcome
from treespec.sinks.rows import node_rows, prompt_row, step_rows
from treespec.sinks.wandb import flatten

_PARTS = ("drafter", "policy", "controller", "acceptance", "verifier")
_BUDGET = ("max_depth", "max_width", "max_nodes")
_SETTINGS = ("max_new_tokens", "max_concurrent", "seed", "trace")
_COPIED = (
    "tokens",
    "text",
    "finish_reason",
    "prefill_s",
    "decode_s",
    "token_times_s",
)
# Where a run wrote to is no setting of it.
_NOT_SETTINGS = ("_treespec", "output_root", "sweep_name", "force", "sink", "wandb")


def results_of(
    outcomes: Sequence[PromptOutcome],
    run: str = "live",
    config: Mapping[str, Any] | None = None,
    wall_s: float | None = None,
) -> Results:
    """Return the tables of outcomes that are still in memory.

    Args:
        outcomes: What ``treespec.measure.measure`` handed over, in order.
        run: The run's name in the tables.
        config: Its configuration, if it has one.
        wall_s: Seconds in which the speculative side served all; the sum of its
            requests' seconds if not given.
    """
    spent = [o.speculative.prefill_s + o.speculative.decode_s for o in outcomes]
    summary = summarize(outcomes, sum(spent) if wall_s is None else wall_s)
    numbered = list(enumerate(outcomes))
    steps = [row for n, outcome in numbered for row in step_rows(n, outcome)]
    nodes = [row for n, outcome in numbered for row in node_rows(n, outcome)]
    prompts = [prompt_columns(prompt_row(n, outcome)) for n, outcome in numbered]
    config = config or {}
    about = {"run": run, "status": "done"}
    row = {**about, **config_columns(config), **summary_columns(flatten(summary))}
    return results_from(
        runs=[row],
        prompts=[table_of(({"run": run, **r} for r in prompts), PROMPT_SCHEMA)],
        steps=[table_of(({"run": run, **r} for r in steps), RUN_STEP_SCHEMA)],
        nodes=[table_of(({"run": run, **r} for r in nodes), RUN_NODE_SCHEMA)],
        settings=setting_rows(run, config),
    )


def results_from(
    runs: Sequence[Row],
    prompts: Sequence[pa.Table],
    steps: Sequence[pa.Table],
    nodes: Sequence[pa.Table],
    settings: Sequence[Row],
) -> Results:
    """Return results from rows and tables that are already in their schemas."""
    return Results(
        runs=frame_of([table_of(runs, RUN_SCHEMA)], RUN_SCHEMA),
        prompts=frame_of(prompts, PROMPT_SCHEMA),
        steps=frame_of(steps, RUN_STEP_SCHEMA),
        nodes=frame_of(nodes, RUN_NODE_SCHEMA),
        settings=frame_of([table_of(settings, SETTING_SCHEMA)], SETTING_SCHEMA),
    )


def config_columns(config: Mapping[str, Any]) -> Row:
    """Return the columns of ``runs`` that a configuration determines."""
    sections = {name: _section(config, name) for name in (*_PARTS, "sampling", "pair")}
    classes = {
        name: str(target).rpartition(".")[2]
        for name in _PARTS
        if (target := sections[name].get("_target_")) is not None
    }
    budget = {name: sections["controller"].get(name) for name in _BUDGET}
    return {
        **classes,
        **{name: value for name, value in budget.items() if isinstance(value, int)},
        **{name: config.get(name) for name in _SETTINGS},
        "temperature": sections["sampling"].get("temperature"),
    }


def environment_columns(environment: Mapping[str, Any]) -> Row:
    """Return the columns of ``runs`` that tell what a run ran on."""
    models = _section(environment, "models")
    target, draft = (_section(models, name) for name in ("target", "draft"))
    return {
        "treespec": _section(environment, "packages").get("treespec"),
        "device": target.get("device"),
        "dtype": target.get("dtype"),
        "target": _model_name(target),
        "draft": _model_name(draft),
    }


def _model_name(model: Mapping[str, Any]) -> str | None:
    """Return a name without the folders of one machine."""
    known = model.get("hub_id") or model.get("wheel") or model.get("name")
    return None if known is None else str(known).rpartition("/")[2]


def summary_columns(flat: Mapping[str, Any]) -> Row:
    """Return the columns of ``runs`` that a flattened summary determines."""
    low, high = flat.get("speedup_ci95") or (None, None)
    numbers = {column: flat.get(key) for column, key in SUMMARY_COLUMNS.items()}
    about = {"baseline": flat.get("baseline")}
    return {**about, "speedup_low": low, "speedup_high": high, **numbers}


def setting_rows(run: str, config: Mapping[str, Any]) -> list[Row]:
    """Return a row per key of a configuration, dotted; values as text."""
    kept = {name: part for name, part in config.items() if name not in _NOT_SETTINGS}
    return [
        {"run": run, "key": key, "value": _text(value)}
        for key, value in flatten(kept).items()
    ]


_PROMPT_COLUMNS = ("prompt_idx", "id", "category", "turn", "lossless")


def prompt_columns(row: Row) -> Row:
    """Return the columns of ``prompts`` from a line of ``prompts.jsonl``."""
    speculative, baseline, sums = (
        row["speculative"],
        row["baseline"],
        row["speculative"]["sums"],
    )
    divergence, quality = row["divergence"] or {}, row["quality"] or {}
    fast, plain = _mode_columns(speculative), _mode_columns(baseline)
    speeds = fast["tokens_per_second"], plain["tokens_per_second"]
    return {
        **{name: row[name] for name in _PROMPT_COLUMNS},
        **{f"divergence_{name}": value for name, value in divergence.items()},
        **quality,
        "num_prompt_tokens": len(row["prompt_tokens"]),
        "prompt_tokens": row["prompt_tokens"],
        "speedup": None if None in speeds else speeds[0] / speeds[1],
        **{n: sums[n] for n in ("num_steps", "num_nodes", "num_accepted")},
        "num_committed": sums["num_committed"],
        "mean_acceptance_length": _ratio(sums["num_committed"], sums["num_steps"]),
        "num_accepted_per_step": _ratio(sums["num_accepted"], sums["num_steps"]),
        "acceptance_rate": _ratio(sums["num_accepted"], sums["num_nodes"]),
        **fast,
        **{f"baseline_{name}": value for name, value in plain.items()},
    }


def _mode_columns(result: Row) -> Row:
    num_tokens, decode_s = len(result["tokens"]), result["decode_s"]
    return {
        **{name: result[name] for name in _COPIED},
        "num_tokens": num_tokens,
        # As in metrics: the first token comes from the prefill. None if none follows.
        "tokens_per_second": _ratio(num_tokens - 1, decode_s) or None,
    }


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
