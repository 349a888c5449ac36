"""Finds runs below folders and reads them into one set of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import pyarrow as pa

from treespec.analysis.folders import LoadedRun, load_folder
from treespec.analysis.live import results_from
from treespec.analysis.offline import load_offline
from treespec.analysis.results import Results
from treespec.errors import TreespecError
from treespec.sinks.reader import run_folders

_OFFLINE = ("*run-*-*", "wandb/*run-*-*", "*/wandb/*run-*-*")


def load_results(*sources: str | PathLike[str]) -> Results:
    """Return the tables of all runs below some folders.

    A source is a run folder, a sweep, a folder of sweeps, or an offline W&B folder
    (``wandb`` or ``offline-run-...``), whose steps and nodes are known as long as the
    files that were handed to W&B are there. Runs that failed or did not end are listed
    with what they have.

    Numbers are taken as they were written; ``treespec.sinks.reader.read_run`` checks a
    run against its records.

    Raises:
        TreespecError: There is no run, a file is torn, or a run was written in another
            layout than this version reads; names the run.
    """
    if not sources:
        raise TreespecError("load_results needs a folder: load_results('outputs')")
    loaded = [run for source in sources for run in _load(Path(source).expanduser())]
    names = _names([run.path for run in loaded])
    return results_from(
        runs=[{**run.row, "run": n} for n, run in zip(names, loaded, strict=True)],
        prompts=_named(names, [run.prompts for run in loaded]),
        steps=_named(names, [run.steps for run in loaded]),
        nodes=_named(names, [run.nodes for run in loaded]),
        settings=[
            {**setting, "run": name}
            for name, run in zip(names, loaded, strict=True)
            for setting in run.settings
        ],
    )


def _load(source: Path) -> list[LoadedRun]:
    folders = run_folders(source)
    if folders:
        return [load_folder(folder) for folder in folders]
    offline = list(_offline_folders(source))
    if offline:
        return [load_offline(folder) for folder in offline]
    there = "has no run in it" if source.is_dir() else "is not a folder"
    raise TreespecError(
        f"{source} {there}; give a run's folder, or that of a sweep, such as "
        "outputs/default"
    )


def _offline_folders(source: Path) -> Iterator[Path]:
    inside = (path for pattern in _OFFLINE for path in source.glob(pattern))
    for folder in (source, *sorted(inside)):
        if any(folder.glob("*.wandb")):
            yield folder


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that tell all runs apart.

    Raises:
        TreespecError: One run was given twice.
    """
    paths = [path.parts for path in runs]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise TreespecError(f"{Path(*twice)} was given twice; name each run once")
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("different paths have different names")


def _named(names: Iterable[str], tables: Iterable[pa.Table]) -> list[pa.Table]:
    """Return tables with their run's name as the first column."""
    return [
        table.set_column(0, "run", pa.repeat(name, len(table)))
        if "run" in table.column_names
        else table.add_column(0, "run", pa.repeat(name, len(table)))
        for name, table in zip(names, tables, strict=True)
    ]
