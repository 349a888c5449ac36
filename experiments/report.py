"""An answer as Markdown and figures, and the index of all answers."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from engine import Answer, Asked, Finished, read_plan, study_names
from treespec.sinks.reader import Run

INDEX = "README.md"
BEGIN, END = "<!-- studies: begin -->", "<!-- studies: end -->"
"""Between these lines of the index stands a table that is written, not typed."""
_ANSWER = "**Answer.** "
_FAST = "**Fast form: it shows that everything runs, and measures nothing.**"
_PACKAGES = ("treespec", "torch", "transformers")


def write_report(finished: Finished, folder: Path) -> Path:
    """Write a study's Markdown and its figures; return where the Markdown is."""
    assert finished.answer is not None
    folder.mkdir(parents=True, exist_ok=True)
    name, charts = finished.asked.name, finished.answer.charts
    for key, chart in charts.items():
        if not chart.is_empty:
            chart.save(folder / figure_name(name, key))
    path = folder / f"{name}.md"
    path.write_text(render(finished), encoding="utf-8")
    return path


def render(finished: Finished) -> str:
    """Return a study's report as Markdown."""
    answer = finished.answer
    assert answer is not None
    return (
        "\n\n".join(
            [
                f"# {finished.plan.question}",
                *([_FAST] if finished.asked.fast else []),
                f"{_ANSWER}{' '.join(answer.summary.split())}",
                f"    {command(finished.asked)}",
                answer.text.strip(),
                *_tables(answer),
                *_figures(finished.asked.name, answer),
                *_failures(finished.measured.missing),
                "## How it was measured",
                _conditions(list(finished.measured.runs.values())),
            ]
        )
        + "\n"
    )


def command(asked: Asked) -> str:
    """Return the command that was run, folders of one machine left out."""
    words = ["python", "experiments/run.py", asked.name]
    words += ["--fast"] if asked.fast else []
    words += [_portable(override) for override in asked.overrides]
    words += [f"settings.{name}={value}" for name, value in asked.settings.items()]
    return shlex.join(words)


def markdown_table(frame: pd.DataFrame) -> str:
    """Return a frame as a Markdown table; numbers are rounded to be read."""
    rows = [[cell(value) for value in row] for row in frame.to_numpy(dtype=object)]
    header = [cell(name) for name in frame.columns]
    is_number = [
        index > 0
        and bool(rows)
        and all(re.match(r"[-+\d.,]+", row[index]) for row in rows)
        for index in range(len(header))
    ]
    rule = ["---:" if number else "---" for number in is_number]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def cell(value: object) -> str:
    """Return a value as the text of a cell; what is not known is a dash."""
    if value is None or value is pd.NA or (isinstance(value, float) and isnan(value)):
        return "-"
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
    return " ".join(str(value).split()).replace("|", "\\|")


def figure_name(study: str, key: str) -> str:
    """Return the file name of a study's figure."""
    return f"{study}_{key}.svg"


def write_index(home: Path) -> None:
    """Write the table of all studies and their answers into the index."""
    path = home / INDEX
    path.write_text(indexed(home, path.read_text(encoding="utf-8")), encoding="utf-8")


def indexed(home: Path, text: str) -> str:
    """Return the index with its table made anew from the reports in the folder."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = [
        [f"[`{name}`]({name}.md)", read_plan(home, name).question, answer]
        if (answer := _answer_in(home / f"{name}.md")) is not None
        else [f"`{name}`", read_plan(home, name).question, "not measured yet"]
        for name in study_names(home)
    ]
    table = markdown_table(pd.DataFrame(rows, columns=["study", "question", "answer"]))
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _answer_in(path: Path) -> str | None:
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    found = (line.removeprefix(_ANSWER) for line in lines if line.startswith(_ANSWER))
    return next(found, None)


def _tables(answer: Answer) -> Iterable[str]:
    for title, frame in answer.tables.items():
        yield f"## {title}"
        yield markdown_table(frame) if len(frame) else "Nothing to show."


def _figures(study: str, answer: Answer) -> Iterable[str]:
    for key, chart in answer.charts.items():
        if not chart.is_empty:
            yield f"![{chart.title}]({figure_name(study, key)})"
        yield from (f"*{note}*" for note in chart.notes)


def _failures(missing: Mapping[str, str]) -> Iterable[str]:
    if missing:
        yield "## What failed"
        yield "\n".join(f"- `{job}`: {_portable(why)}" for job, why in missing.items())


def _conditions(runs: Sequence[Run]) -> str:
    """Return date, machine, versions, models and sizes of the runs."""
    environment, config = runs[0].environment, runs[0].config
    ended = max(str(run.status["ended_at"]) for run in runs)
    minutes = sum(_seconds(run.status) for run in runs) / 60
    packages = environment["packages"]
    versions = ", ".join(
        f"{name} {packages[name]}" for name in _PACKAGES if packages.get(name)
    )
    return "\n".join(
        [
            f"- {_counted(runs)} per job ({_dataset(runs)}), up to "
            f"{_several(r.config['max_new_tokens'] for r in runs)} new tokens each, "
            f"{_several(r.config['max_concurrent'] for r in runs)} at once, seed "
            f"{config['seed']}; every job decodes each prompt with its baseline as "
            "well, in turns",
            *(
                f"- {role}: {_several(_model(model) for model in models)}"
                for role, models in _models(runs).items()
            ),
            f"- {ended[:10]}; {len(runs)} jobs took {minutes:.1f} minutes",
            f"- {environment['cpu'] or 'unknown CPU'}, {environment['num_cpus']} CPUs, "
            f"{environment['num_threads']} threads"
            + "".join(f", {name}" for name in environment["cuda"]),
            f"- Python {environment['python']}, {versions}",
        ]
    )


def _counted(runs: Sequence[Run]) -> str:
    return f"{_several(sorted({len(run.outcomes) for run in runs}))} prompts"


def _dataset(runs: Sequence[Run]) -> str:
    """Return whose prompts they are, and how many of which category."""
    names = (str(run.config["dataset"]["_target_"]).rpartition(".")[2] for run in runs)
    most = max(runs, key=lambda run: len(run.outcomes))
    counts = Counter(outcome.category for outcome in most.outcomes)
    kinds = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{_several(names)}: {kinds}"


def _several(values: Iterable[object]) -> str:
    """Return each value once."""
    return " or ".join(dict.fromkeys(map(str, values)))


def _models(runs: Sequence[Run]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the models of the runs, by role."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        for role, model in run.environment["models"].items():
            found.setdefault(role, []).append(model)
    return found


def _model(model: Mapping[str, Any]) -> str:
    name = model.get("hub_id") or model.get("wheel") or model["name"]
    words = [str(name).rpartition("/")[2], str(model["dtype"])]
    if model.get("quantization"):
        words.append(f"linear layers in {model['quantization']}")
    return ", ".join(words)


def _seconds(status: Mapping[str, Any]) -> float:
    began, ended = (
        datetime.fromisoformat(status[key]) for key in ("started_at", "ended_at")
    )
    return (ended - began).total_seconds()


def _portable(text: str) -> str:
    """Return a text in which absolute paths, which are one machine's, are DIR/NAME."""
    return re.sub(r"(?<![\w.])/[^\s'\",;:]+", lambda found: _in_dir(found[0]), text)


def _in_dir(path: str) -> str:
    return f"DIR/{path.rstrip('/').rpartition('/')[2]}"
