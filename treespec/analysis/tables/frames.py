"""What the tables share: steps of one mode, lists made rows, rates with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from treespec.analysis.results import Results
from treespec.stats import wilson_interval

Row = dict[str, Any]
NAN = float("nan")


def speculative_steps(results: Results) -> pd.DataFrame:
    """Return the steps that may have drafted."""
    return results.steps[results.steps["mode"] == "speculative"]


def by_run(frame: pd.DataFrame, results: Results) -> Iterable[tuple[str, pd.DataFrame]]:
    """Return the rows of each run, in the order of ``results.runs``."""
    groups = dict(iter(frame.groupby("run", sort=False)))
    return [(run, groups[run]) for run in results.runs["run"] if run in groups]


def exploded(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return a row per entry of list columns whose lists are equally long."""
    lists = [_lists(frame[name]) for name in columns]
    parents = pc.list_parent_indices(lists[0]).to_numpy(zero_copy_only=False)
    values = {
        name: pc.list_flatten(column).to_numpy(zero_copy_only=False)
        for name, column in zip(columns, lists, strict=True)
    }
    return pd.DataFrame({"run": frame["run"].to_numpy()[parents], **values})


def _lists(series: pd.Series) -> pa.Array:
    array = pa.array(series.array)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def rate_columns(num_hits: int, num_trials: int, prefix: str = "") -> Row:
    """Return a rate and its 95% Wilson interval; NaN without trials."""
    interval = wilson_interval(int(num_hits), int(num_trials))
    return {
        f"{prefix}rate": num_hits / num_trials if num_trials else NAN,
        f"{prefix}low": NAN if interval is None else interval.low,
        f"{prefix}high": NAN if interval is None else interval.high,
    }


def mean_columns(values: NDArray[np.float64]) -> Row:
    """Return a mean and its normal 95% interval; NaN for fewer than two values."""
    size = len(values)
    mean = float(values.mean()) if size else NAN
    half = 1.96 * float(values.std(ddof=1)) / size**0.5 if size > 1 else NAN
    return {"mean": mean, "low": mean - half, "high": mean + half}


def frame_with(rows: Iterable[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a frame that has its columns also when it is empty."""
    return pd.DataFrame(list(rows), columns=list(columns))
