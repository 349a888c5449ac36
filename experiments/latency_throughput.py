"""Requests at once against speed: where speculation stops paying under load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine import Answer, Measured, Study
from serving import Served, ratio, served
from treespec.analysis.chart import Chart, Guide, Panel, Points
from treespec.metrics import MIN_PROMPTS_FOR_INTERVAL
from treespec.sinks.lines import times
from treespec.sinks.reader import Run
from words import listed, pays, speedup

METHODS = {"gamma_5": "5 drafts", "gamma_10": "10 drafts", "planner": "planner"}
LOADS = (1, 2, 4, 8)
PLAIN = "autoregressive"
_FASTER, _SLOWER = "faster", "slower"


@dataclass(frozen=True, slots=True)
class Cell:
    """A strategy at one load, and the plain decoding that took turns with it."""

    method: str
    load: int
    run: Run
    speculative: Served
    plain: Served

    @property
    def gain(self) -> float | None:
        """How many times as many requests per second it serves."""
        return ratio(self.speculative.requests_per_s, self.plain.requests_per_s)


def answer(measured: Measured) -> Answer:
    """Return throughput and latency by load, and where the two cross."""
    cells = cells_of(measured, METHODS, LOADS)
    frame = pd.DataFrame(_rows(cells))
    return Answer(
        summary="Times the requests/s of plain decoding, by requests at once, each "
        "measured once: " + "; ".join(_found(cells, method) for method in METHODS),
        text=_text(cells),
        tables={
            "By requests at once": frame,
            "Speculation against plain decoding at the same load": pd.DataFrame(
                _gains(cells)
            ),
        },
        charts={"gain": gain_chart(cells), "latency": _latency_chart(cells)},
    )


def cells_of(
    measured: Measured, methods: Iterable[str], loads: Sequence[int]
) -> list[Cell]:
    """Return what there is of the jobs ``METHOD_at_LOAD``."""
    found = []
    for method in methods:
        for load in loads:
            run = measured.runs.get(f"{method}_at_{load}")
            if run is not None:
                sides = served([run], "speculative"), served([run], "baseline")
                found.append(Cell(method, load, run, *sides))
    return found


def gain_chart(cells: Sequence[Cell]) -> Chart:
    """Return how much more is served than by plain decoding, by load."""
    panel = Panel(
        x_label="Requests at once",
        y_label="Requests/s, over plain decoding (times)",
        marks=_lines(cells, [cell.gain for cell in cells]),
        guides=(Guide("y", 1.0, PLAIN),),
        x_scale="log",
    )
    return Chart(f"What speculation gives under load ({_n(cells)})", (panel,))


def _latency_chart(cells: Sequence[Cell]) -> Chart:
    medians = [cell.speculative.percentile_ms(50) for cell in cells]
    marks = list(_lines(cells, medians))
    loads = sorted({cell.load for cell in cells})
    plain = [_plain(cells, load).percentile_ms(50) or float("nan") for load in loads]
    xs = tuple(float(load) for load in loads)
    marks.append(Points(PLAIN, xs, tuple(plain), style=len(METHODS)))
    panel = Panel(
        x_label="Requests at once",
        y_label="Median latency (ms)",
        marks=tuple(marks),
        x_scale="log",
    )
    return Chart(f"Latency under load ({_n(cells)})", (panel,))


def _lines(cells: Sequence[Cell], values: Sequence[float | None]) -> tuple[Points, ...]:
    pairs = list(zip(cells, values, strict=True))
    names = list(dict.fromkeys(cell.method for cell in cells))
    return tuple(
        Points(
            METHODS[name],
            tuple(
                float(c.load) for c, v in pairs if c.method == name and v is not None
            ),
            tuple(v for c, v in pairs if c.method == name and v is not None),
            style=style,
        )
        for style, name in enumerate(names)
    )


def _n(cells: Sequence[Cell]) -> str:
    counts = sorted({len(cell.run.outcomes) for cell in cells})
    return f"n = {' or '.join(map(str, counts))} prompts"


def _plain(cells: Sequence[Cell], load: int) -> Served:
    """Return all plain decoding at a load: every strategy took turns with it."""
    return served([cell.run for cell in cells if cell.load == load], "baseline")


def _rows(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for load in sorted({cell.load for cell in cells}):
        sides = [(PLAIN, _plain(cells, load))]
        sides += [(METHODS[c.method], c.speculative) for c in cells if c.load == load]
        for name, side in sides:
            yield {
                "requests at once": load,
                "method": name,
                "requests/s": side.requests_per_s,
                "tokens/s": side.tokens_per_s,
                "mean latency (ms)": side.mean_ms,
                "P50 (ms)": side.percentile_ms(50),
                "P99 (ms)": side.percentile_ms(99),
            }


def _gains(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        yield {
            "method": METHODS[cell.method],
            "requests at once": cell.load,
            "requests/s (times)": times(cell.gain),
            "speed-up of decoding (95%)": speedup(cell.run.summary),
            "verdict": _verdict(cell),
            "drafted/forward": cell.run.summary["mean_nodes"],
            "tokens/forward": cell.run.summary["mean_acceptance_length"],
        }


def _verdict(cell: Cell) -> str:
    """Return what the interval says; requests of a batch share their steps."""
    num_batches = len(cell.run.outcomes) / cell.load
    few = num_batches < MIN_PROMPTS_FOR_INTERVAL
    return "too few batches to tell" if few else pays(cell.run.summary)


def _found(cells: Sequence[Cell], method: str) -> str:
    own = [cell for cell in cells if cell.method == method]
    gains = ", ".join(f"{times(cell.gain)} at {cell.load}" for cell in own)
    return f"{METHODS[method]}: {gains or 'not measured'}"


def _text(cells: Sequence[Cell]) -> str:
    lines = [
        "Requests of a batch are admitted together. Requests/s hold the reading of the "
        "prompts; the speed-up of decoding leaves it out. Requests of a batch share "
        "their steps, so with fewer than five batches its interval says nothing of "
        "other batches, and no verdict is made of it."
    ]
    for method, name in METHODS.items():
        own = [cell for cell in cells if cell.method == method]
        verdicts = {cell.load: _verdict(cell) for cell in own}
        faster = [str(load) for load, word in verdicts.items() if word == _FASTER]
        slower = [str(load) for load, word in verdicts.items() if word == _SLOWER]
        above = [cell.load for cell in own if (cell.gain or 0) > 1]
        last = (
            f"the largest load at which it served more requests/s was {max(above)}"
            if above
            else "at no load did it serve more requests/s"
        )
        if own:
            lines.append(
                f"**{name}**: decoding is faster beyond its interval with "
                f"{listed(faster, 'no number of')} requests at once, slower with "
                f"{listed(slower, 'none')}; {last}."
            )
    return "\n\n".join(lines)


STUDY = Study(answer=answer)
