"""What the charts share: which runs are in, what is said of the others, n in titles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from treespec.analysis.chart import Chart, Panel, Points
from treespec.analysis.look import NUM_STYLES
from treespec.analysis.results import Results
from treespec.datasets.base import prompt_id
from treespec.metrics import PLAIN

_MAX_NOTES = 3
_DODGE = 0.06


def floats(values: pd.Series) -> tuple[float, ...]:
    """Return a column as plain numbers; what is not known is NaN."""
    return tuple(values.to_numpy(dtype=float, na_value=float("nan")).tolist())


def counted(number: int, word: str) -> str:
    """Return ``1 step``, ``2 steps``, ``1,000 steps``."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def about_prompts(results: Results, frame: pd.DataFrame) -> str:
    """Return how many prompts a chart's numbers are from; runs may share them.

    Args:
        results: The runs.
        frame: The rows that are drawn, with their ``run``.
    """
    drawn = results.prompts[results.prompts["run"].isin(set(frame["run"]))]
    num_runs = drawn["run"].nunique()
    num_prompts = len(drawn)
    if drawn["id"].notna().all():  # W&B alone knows no names
        turns = zip(drawn["id"], drawn["turn"].fillna(1), strict=True)
        names = [prompt_id(str(name), int(turn)) for name, turn in turns]
        num_prompts = len(set(zip(names, drawn["category"], strict=True)))
    spread = f" in {num_runs} runs" if num_runs > 1 else ""
    return counted(num_prompts, "prompt") + spread


def plain_words(results: Results) -> str:
    """Return what speed-ups are over: plain decoding, or the baselines of the runs."""
    names = sorted(set(results.runs["baseline"].dropna()) - {PLAIN})
    return f"as the baseline ({', '.join(names)})" if names else "without speculation"


def notes(results: Results, shown: Sequence[str]) -> tuple[str, ...]:
    """Return what a reader must know of the runs in and not in a chart."""
    found = [_short(note) for note in results.notes()]
    if len(found) > _MAX_NOTES:
        rest = len(found) - _MAX_NOTES
        found = [*found[:_MAX_NOTES], f"{rest} more runs are not done"]
    done = results.runs.loc[results.runs["status"] == "done", "run"]
    silent = [run for run in done if run not in shown]
    if silent:
        found.append(f"nothing to show of {_listed(silent)}")
    if len(results.prompts) == 1:
        found.append("one prompt: it says nothing of others")
    return tuple(found)


def _short(note: str) -> str:
    return note if len(note) <= 160 else note[:159] + "\u2026"


def _listed(names: Sequence[str]) -> str:
    head = ", ".join(names[:_MAX_NOTES])
    rest = len(names) - _MAX_NOTES
    return head if rest <= 0 else f"{head} and {rest} more"


def why_untimed(results: Results, otherwise: str) -> str:
    """Return why no run has a speed: others ran beside it, or another reason."""
    if (results.runs["num_jobs_beside"].fillna(0) > 0).any():
        return "No speed is known: other jobs ran beside these runs on their device."
    if (results.runs["status"] == "done").any():
        return otherwise
    return "No run was finished."


def nothing(title: str, results: Results, why: str, frame: pd.DataFrame) -> Chart:
    """Return the chart that says why there is nothing to show."""
    return Chart(f"{title} (n = 0)", (), (why, *results.notes()[:_MAX_NOTES]), frame)


@dataclass(frozen=True, slots=True)
class Kind:
    """One run's rows of a frame, and how they are shown.

    Attributes:
        label: The run's name in the legend.
        style: Its look.
        dodge: How far to the right it is shown where the axis has whole numbers.
        rows: Its rows.
    """

    label: str
    style: int
    dodge: float
    rows: pd.DataFrame


def kinds(results: Results, frame: pd.DataFrame) -> Iterator[Kind]:
    """Return the rows of each run, as many runs as can be told apart."""
    labels, present = results.labels(), set(frame["run"])
    runs = [run for run in results.runs["run"] if run in present]
    shown = runs[:NUM_STYLES]
    for style, run in enumerate(shown):
        dodge = (style - (len(shown) - 1) / 2) * _DODGE
        yield Kind(labels[run], style, dodge, frame[frame["run"] == run])


def too_many(
    frame: pd.DataFrame, column: str = "run", most: int = NUM_STYLES
) -> tuple[str, ...]:
    """Return the note that not all kinds are drawn, if that is so."""
    number = frame[column].nunique()
    if number <= most:
        return ()
    return (
        f"the first {most} of {number} runs; choose with results.where or results.only",
    )


def rates(kind: Kind, x: str, y: str = "rate", *, prefix: str = "") -> Points:
    """Return a run's rates with their intervals as points on a line."""
    rows = kind.rows
    return Points(
        name=kind.label,
        x=floats(rows[x]),
        y=floats(rows[prefix + y]),
        low=floats(rows[f"{prefix}low"]),
        high=floats(rows[f"{prefix}high"]),
        style=kind.style,
        dodge=kind.dodge,
    )


def chart(
    title: str,
    panels: Sequence[Panel],
    results: Results,
    frame: pd.DataFrame,
    most: int = NUM_STYLES,
) -> Chart:
    """Return a chart of one frame, of whose runs the first ``most`` are shown."""
    told = (*too_many(frame, most=most), *notes(results, list(frame["run"].unique())))
    return Chart(title, tuple(panels), told, frame)
