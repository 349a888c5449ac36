"""What was found on disk: five tables, and what did not get to its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from treespec.errors import TreespecError, unknown_name

_MAX_NAME = 60


@dataclass(frozen=True)
class Results:
    """Runs and their records; ``treespec.analysis.schema`` has columns and types.

    Attributes:
        runs: A row per run: how it ended, what it was made of, its summary.
        prompts: A row per prompt, both modes side by side.
        steps: A row per step of either ``mode``, columns as in ``StepRecord``.
        nodes: A row per drafted node, as in ``NodeTrace``; only with ``trace=nodes``.
        settings: A row per run and configuration key; values as text.
    """

    runs: pd.DataFrame
    prompts: pd.DataFrame
    steps: pd.DataFrame
    nodes: pd.DataFrame
    settings: pd.DataFrame

    def __str__(self) -> str:
        """Return what there is, and by name what is not finished."""
        counts = (
            f"{len(self.runs)} runs, {len(self.prompts)} prompts, "
            f"{len(self.steps)} steps, {len(self.nodes)} nodes"
        )
        return "\n".join([counts, *self.notes()])

    __repr__ = __str__

    @property
    def unfinished(self) -> pd.DataFrame:
        """Rows of ``runs`` that did not end well."""
        return self.runs[self.runs["status"] != "done"]

    def notes(self) -> list[str]:
        """Return a line for each run that is not done: its name, status and error."""
        told = self.unfinished[["run", "status", "error"]].fillna("")
        return [
            f"{run}: {status}" + (f", {error}" if error else "")
            for run, status, error in told.astype(object).to_numpy()
        ]

    def varied(self) -> pd.DataFrame:
        """Return the settings in which runs differ: a row per run, a column per key."""
        wide = self.settings.pivot(index="run", columns="key", values="value")
        differs = wide.nunique(dropna=False) > 1
        return wide.loc[:, differs].reindex(self.runs["run"])

    def labels(self) -> dict[str, str]:
        """Return a short name for each run, by what it does not share with the others.

        The drafter and the policy if there is one run; two runs that differ in nothing
        keep the ends of their keys.
        """
        if len(self.runs) == 1:
            row = self.runs.iloc[0]
            words = [str(row[n]) for n in ("drafter", "policy") if pd.notna(row[n])]
            return {row["run"]: " + ".join(words) or str(row["run"])}
        varied = self.varied()
        common = varied.dropna(axis="columns")
        names = [_label(common.loc[run]) for run in common.index]
        if len(set(names)) < len(names):  # keys that only some of them have, too
            names = [_label(varied.loc[run]) for run in varied.index]
        taken = Counter(names)
        return {
            str(run): name if name and taken[name] == 1 else f"{name} {run}".strip()
            for run, name in zip(varied.index, names, strict=True)
        }

    def where(self, keep: Callable[[pd.DataFrame], pd.Series]) -> Results:
        """Return some of the runs: ``results.where(lambda runs: runs.max_nodes < 9)``.

        Args:
            keep: From ``runs`` to a truth for each of its rows.
        """
        kept = keep(self.runs).fillna(False).astype(bool)
        return self._restricted(list(self.runs.loc[kept, "run"]))

    def only(self, *runs: str) -> Results:
        """Return the named runs.

        Raises:
            TreespecError: There is no such run.
        """
        known = set(self.runs["run"])
        for run in runs:
            if run not in known:
                raise unknown_name("run", run, known)
        return self._restricted(runs)

    def _restricted(self, names: Sequence[str]) -> Results:
        frames = (self.runs, self.prompts, self.steps, self.nodes, self.settings)
        kept = [
            frame[frame["run"].isin(list(names))].reset_index(drop=True)
            for frame in frames
        ]
        return Results(*kept)


def _label(differing: pd.Series) -> str:
    """Return the values in which a run differs, long paths by their ends."""
    words = []
    for key, value in differing.items():
        if pd.isna(value):
            continue
        name = str(key).rpartition(".")[2]
        if name == "_target_":
            words.append(str(value).rpartition(".")[2])
        else:
            words.append(f"{name} {Path(value).name if '/' in value else value}")
    text = ", ".join(words)
    return text if len(text) <= _MAX_NAME else text[: _MAX_NAME - 1] + "\u2026"


def one_run(results: Results, run: str | None) -> str:
    """Return the run that is meant.

    Raises:
        TreespecError: There are several and none was named, or none at all.
    """
    names = list(results.runs["run"])
    if run is not None:
        return str(results.only(run).runs["run"].iloc[0])
    if len(names) != 1:
        raise TreespecError(
            f"run must be named, as there are {len(names)} runs; give run=NAME, one of "
            "results.runs['run']"
        )
    return str(names[0])
