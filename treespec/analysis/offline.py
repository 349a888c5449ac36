"""One offline W&B run as rows and tables: what W&B was told, and the files it knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from treespec.analysis.folders import LoadedRun, expect_schema, load_folder
from treespec.analysis.live import (
    config_columns,
    environment_columns,
    setting_rows,
    summary_columns,
)
from treespec.analysis.schema import PROMPT_SCHEMA, table_of
from treespec.sinks.rows import NODE_SCHEMA, STEP_SCHEMA
from treespec.sinks.wandb import OWN
from treespec.sinks.wandb_reader import OfflineRun, read_offline_run

_PREFIX = "prompt/"


def load_offline(folder: Path) -> LoadedRun:
    """Return what W&B was told of a run, and its records if they are at hand.

    Raises:
        TreespecError: W&B cannot read it, or it is of another layout.
    """
    run = read_offline_run(folder)
    environment = run.config.get(OWN, {})
    expect_schema(str(folder), environment.get("schema", 1), environment)
    prompts = [
        {
            "prompt_idx": index,
            **{key.removeprefix(_PREFIX): value for key, value in prompt.items()},
        }
        for index, prompt in enumerate(run.prompts)
    ]
    row = {
        "folder": str(folder),
        "sweep": run.sweep_name,
        "status": _status(run),
        **environment_columns(environment),
        **config_columns(run.config),
        **summary_columns(run.summary),
    }
    loaded = LoadedRun(
        path=folder.absolute().with_name(run.run_key),
        row=row,
        prompts=table_of(prompts, PROMPT_SCHEMA),
        steps=STEP_SCHEMA.empty_table(),
        nodes=NODE_SCHEMA.empty_table(),
        settings=setting_rows("", run.config),
    )
    if run.run_folder is None:
        return loaded
    records = load_folder(run.run_folder)
    return replace(
        loaded, prompts=records.prompts, steps=records.steps, nodes=records.nodes
    )


def _status(run: OfflineRun) -> str:
    if run.exit_code is None:
        return "running"
    return "done" if run.exit_code == 0 else "failed"
