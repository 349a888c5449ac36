"""Where the time of steps went, over a run and within one generation."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pandas as pd

from treespec.analysis.results import Results, one_run
from treespec.analysis.tables.frames import (
    Row,
    frame_with,
    speculative_steps,
)
from treespec.errors import TreespecError

PHASES = ("draft", "verify", "accept", "commit", "overhead")
"""Phases of a step, in the order of ``time_share`` in ``summary.json``."""
_TIMED = PHASES[:-1]


def time_shares(results: Results) -> pd.DataFrame:
    """Return which share of all steps' seconds each phase took, from the summaries.

    Returns:
        ``run``, ``phase``, ``share``; the shares of a run sum to 1.
    """
    rows = [
        {"run": row["run"], "phase": phase, "share": row[f"{phase}_share"]}
        for _, row in results.runs.iterrows()
        for phase in PHASES
        if pd.notna(row[f"{phase}_share"])
    ]
    return frame_with(rows, ("run", "phase", "share"))


def tokens_over_time(
    results: Results, prompt: str, run: str | None = None
) -> pd.DataFrame:
    """Return when each token of one prompt was there, with and without speculation.

    Returns:
        ``mode``, ``time_s`` since admission, ``num_tokens`` by then; empty if the run
        has no times.

    Raises:
        TreespecError: The run or the prompt is not there.
    """
    row = one_prompt(results, prompt, run)
    modes = (("speculative", "token_times_s"), ("baseline", "baseline_token_times_s"))
    rows = [
        {"mode": mode, "time_s": time_s, "num_tokens": number}
        for mode, column in modes
        if np.ndim(row[column]) == 1  # a run without times has none
        for number, time_s in enumerate(row[column], start=1)
    ]
    return frame_with(rows, ("mode", "time_s", "num_tokens"))


def phases_of_generation(
    results: Results, prompt: str, run: str | None = None
) -> pd.DataFrame:
    """Return the phases of each speculative step of one prompt, one after the other.

    A step's phases are laid from its beginning on; what is left until its tokens are
    there is its overhead and, with several requests at once, the others' share.

    Returns:
        ``step``, ``phase``, ``start_s`` since admission, ``length_s``,
        ``num_committed``.

    Raises:
        TreespecError: The run or the prompt is not there.
    """
    row = one_prompt(results, prompt, run)
    steps = speculative_steps(results)
    of_prompt = steps[
        (steps["run"] == row["run"]) & (steps["prompt_idx"] == row["prompt_idx"])
    ]
    times = row["token_times_s"]
    counts = of_prompt["num_committed"].to_numpy(dtype=int)
    ends = [times[last] for last in accumulate(counts)]
    rows: list[Row] = []
    starts = [row["prefill_s"], *ends][: len(ends)]
    for (_, step), start_s, end_s in zip(
        of_prompt.iterrows(), starts, ends, strict=True
    ):
        at = start_s
        about = {"step": step["step"], "num_committed": step["num_committed"]}
        for phase in _TIMED:
            length = step[f"{phase}_s"]
            rows.append({**about, "phase": phase, "start_s": at, "length_s": length})
            at += length
        rest = {"start_s": at, "length_s": max(end_s - at, 0.0)}
        rows.append({**about, "phase": PHASES[-1], **rest})
    columns = ("step", "phase", "start_s", "length_s", "num_committed")
    return frame_with(rows, columns)


def one_prompt(results: Results, prompt: str, run: str | None) -> pd.Series:
    """Return the row of a prompt.

    Raises:
        TreespecError: The run or the prompt is not there.
    """
    name = one_run(results, run)
    prompts = results.prompts[results.prompts["run"] == name]
    found = prompts[prompts["id"] == prompt]
    if len(found) == 0:
        known = ", ".join(prompts["id"].dropna().head(5)) or "none"
        raise TreespecError(
            f"prompt {prompt!r} is not in run {name}; it has {len(prompts)}: {known}"
        )
    return found.iloc[0]
