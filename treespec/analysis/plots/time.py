"""Where time goes: over whole runs, and along one generation."""

from __future__ import annotations

from treespec.analysis import tables
from treespec.analysis.chart import Chart, Panel, Points, Spans
from treespec.analysis.plots.shared import (
    about_prompts,
    counted,
    floats,
    notes,
    nothing,
    plain_words,
    why_untimed,
)
from treespec.analysis.results import Results, one_run
from treespec.analysis.tables.time import PHASES

_MOST_ROWS = 24


def time_shares(results: Results) -> Chart:
    """Return which share of the steps' seconds each phase took, run by run."""
    frame = tables.time_shares(results)
    title = "Where the time of steps went"
    if frame.empty:
        return nothing(
            title, results, why_untimed(results, "No step was timed."), frame
        )
    labels, runs = results.labels(), list(frame["run"].unique())
    shown = runs[:_MOST_ROWS]
    wide = frame.pivot(index="run", columns="phase", values="share").loc[shown]
    ends = wide[list(PHASES)].cumsum(axis=1)
    marks = tuple(
        Spans(
            name=phase,
            rows=tuple(range(len(shown))),
            starts=floats(ends[phase] - wide[phase]),
            lengths=floats(wide[phase]),
            style=style,
            labels=tuple(f"{share:.0%}" for share in wide[phase]),
        )
        for style, phase in enumerate(PHASES)
    )
    panel = Panel(
        x_label="Share of the seconds of all steps",
        y_label="Run",
        marks=marks,
        categories=tuple(labels[run] for run in shown),
        x_range=(0.0, 1.0),
    )
    drawn = results.runs["run"].isin(runs)
    num_steps = int(results.runs.loc[drawn, "num_steps"].sum())
    told = notes(results, runs)
    if len(runs) > len(shown):
        told = (f"the first {len(shown)} of {len(runs)} runs", *told)
    n = f"{counted(num_steps, 'step')}, {about_prompts(results, frame)}"
    return Chart(f"{title} (n = {n})", (panel,), told, frame)


def generation(results: Results, prompt: str, run: str | None = None) -> Chart:
    """Return one prompt's tokens over time, and below what each step did meanwhile.

    Args:
        results: The runs.
        prompt: The prompt's id.
        run: The run, if there are several.

    Raises:
        TreespecError: The run or the prompt is not there.
    """
    name = one_run(results, run)
    title = f"Generation of {prompt!r}"
    ids = results.prompts.loc[results.prompts["run"] == name, "id"]
    if ids.isna().all():
        why = "No prompt is recorded here; of a W&B run, load the run folder."
        return nothing(title, results.only(name), why, results.steps.head(0))
    tokens = tables.tokens_over_time(results, prompt, name)
    if tokens.empty:
        why = why_untimed(results.only(name), "No token was timed.")
        return nothing(title, results.only(name), why, tokens)
    phases = tables.phases_of_generation(results, prompt, name)
    x_label = "Time since admission (s)"
    curves = tuple(
        Points(
            name=word,
            x=floats(rows["time_s"]),
            y=floats(rows["num_tokens"]),
            join="steps",
            style=style,
            mark="none",
        )
        for style, (mode, word) in enumerate(
            (("speculative", "speculative"), ("baseline", plain_words(results)))
        )
        for rows in [tokens[tokens["mode"] == mode]]
    )
    bars = tuple(
        Spans(
            name=phase,
            rows=(row,) * len(rows),
            starts=floats(rows["start_s"]),
            lengths=floats(rows["length_s"]),
            style=row,
        )
        for row, phase in enumerate(PHASES)
        for rows in [phases[phases["phase"] == phase]]
    )
    panels = (
        Panel(x_label, "Tokens so far", curves),
        Panel(x_label, "Phase of the step", bars, categories=PHASES),
    )
    num_steps, num_tokens = phases["step"].nunique(), int(tokens["num_tokens"].max())
    n = f"{counted(num_tokens, 'token')}, {counted(num_steps, 'step')}"
    told = tuple(results.only(name).notes())
    return Chart(f"{title} (n = {n})", panels, told, tokens)
