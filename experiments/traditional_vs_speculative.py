"""Cache, quantization, batching and speculation, alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine import Answer, Measured, Study
from serving import Served, Side, ratio, served
from treespec.analysis.chart import Chart, Guide, Panel, Points
from treespec.sinks.lines import times
from treespec.sinks.reader import Run
from words import listed, pays, speedup


@dataclass(frozen=True, slots=True)
class Way:
    """One way to decode: a side of a job.

    Attributes:
        name: How it is told.
        job: The job.
        side: Which of the two that took turns.
        turns: Whether the job's other side is the way that all are compared with.
        stock: Whether it is compared with the cache of transformers, whose modules it
            shares, so that the ratio is not that of two sets of kernels.
    """

    name: str
    job: str
    side: Side
    turns: bool = False
    stock: bool = False


REFERENCE = "cache"
WAYS = (
    Way("no cache (transformers)", "no_cache", "baseline", stock=True),
    Way("cache (transformers)", "cache", "baseline", turns=True),
    Way("cache", "cache", "speculative"),
    Way("int8", "quantized", "baseline"),
    Way("4 at once", "batched", "baseline"),
    Way("5 drafts", "speculation", "speculative", turns=True),
    Way("planned drafts", "planner", "speculative", turns=True),
    Way("5 drafts (transformers)", "assisted", "baseline", stock=True),
    Way("int8, 4 at once", "quantized_batched", "baseline"),
    Way("int8, 5 drafts", "quantized", "speculative"),
    Way("4 at once, 5 drafts", "batched", "speculative"),
    Way("int8, 4 at once, 5 drafts", "quantized_batched", "speculative"),
)
SPECULATION = {
    "speculation": "5 drafts",
    "planner": "planned drafts",
    "quantized": "5 drafts, on int8",
    "batched": "5 drafts, 4 at once",
    "quantized_batched": "5 drafts, on int8, 4 at once",
}


def answer(measured: Measured) -> Answer:
    """Return what each way and their combinations gave."""
    measured.run(REFERENCE)
    rows = [row for way in WAYS if (row := _row(measured, way)) is not None]
    frame = pd.DataFrame(rows)
    return Answer(
        summary=_summary(measured, rows),
        text=_text(measured, rows),
        tables={
            "Each way": frame.drop(columns=["faster", "more"]),
            "What speculation adds to the rest": pd.DataFrame(_adds(measured)),
        },
        charts={"ways": _chart(measured, rows)},
    )


def _row(measured: Measured, way: Way) -> dict[str, Any] | None:
    run = measured.runs.get(way.job)
    if run is None:
        return None
    own = served([run], way.side)
    plain = _reference(measured, way, run)
    faster = ratio(_ms_per_token(plain), _ms_per_token(own))
    more = ratio(own.tokens_per_s, plain.tokens_per_s)
    return {
        "way": way.name,
        "mean latency (ms)": own.mean_ms,
        "P99 (ms)": own.percentile_ms(99),
        "latency per token (ms)": _ms_per_token(own),
        "requests/s": own.requests_per_s,
        "tokens/s": own.tokens_per_s,
        "times as fast": times(faster),
        "times as many tokens/s": times(more),
        "compared": ("in turns" if way.turns else "across jobs")
        + (", with the cache of transformers" if way.stock else ""),
        "faster": faster,
        "more": more,
    }


def _reference(measured: Measured, way: Way, run: Run) -> Served:
    """Return plain decoding with a cache: of the same job where it took turns."""
    if way.turns:
        return served([run], _other(way.side))
    prompts = [outcome.id for outcome in run.outcomes]
    side: Side = "baseline" if way.stock else "speculative"
    return served([measured.runs[REFERENCE]], side, prompts)


def _other(side: Side) -> Side:
    return "speculative" if side == "baseline" else "baseline"


def _ms_per_token(served_: Served) -> float | None:
    """Return latency per new token, the reading of the prompt included."""
    return ratio(sum(served_.latencies_ms), served_.num_tokens)


def _adds(measured: Measured) -> Iterator[dict[str, Any]]:
    for job, name in SPECULATION.items():
        run = measured.runs.get(job)
        if run is not None:
            sides = served([run], "speculative"), served([run], "baseline")
            rates = (side.requests_per_s for side in sides)
            yield {
                "added": name,
                "speed-up of decoding (95%)": speedup(run.summary),
                "requests/s (times)": times(ratio(*rates)),
                "tokens/forward": run.summary["mean_acceptance_length"],
            }


def _summary(measured: Measured, rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the fastest way, the one that serves most, and speculation alone."""
    fastest = _largest(rows, "faster")
    most = _largest(rows, "more")
    alone = measured.runs.get("speculation")
    words = [
        f"fastest per request: {fastest} of a cache alone",
        f"most tokens/s: {most}",
    ]
    if alone is not None:
        words.append(f"5 drafts alone: {speedup(alone.summary)} in decoding")
    return "; ".join(words)


def _largest(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    known = [row for row in rows if row[key] is not None]
    if not known:
        return "not known"
    best = max(known, key=lambda row: float(row[key]))
    return f"{best['way']}, {times(best[key])}"


def _text(measured: Measured, rows: Sequence[Mapping[str, Any]]) -> str:
    slower = [str(row["way"]) for row in rows if (row["faster"] or 1) < 1]
    fewer = [str(row["way"]) for row in rows if (row["more"] or 1) < 1]
    worse = [
        name
        for job, name in SPECULATION.items()
        if job in measured.runs and pays(measured.runs[job].summary) == "slower"
    ]
    return "\n\n".join(
        [
            "All is compared with plain decoding with a cache: *in turns* in the same "
            "job, prompt by prompt, or *across jobs*, where a disturbance of the "
            "machine shows. What transformers decodes is compared with its own cache, "
            "and that in turns with ours: the ratio of the two is that of modules and "
            "loops. The int8 target is another model: its texts differ.",
            f"A request took longer than with a cache alone with: {listed(slower)}. "
            f"The machine made fewer tokens/s with: {listed(fewer)}.",
            f"Speculation slowed decoding beyond its interval as: {listed(worse)}.",
        ]
    )


def _chart(measured: Measured, rows: Sequence[Mapping[str, Any]]) -> Chart:
    names = tuple(str(row["way"]) for row in rows)
    marks = tuple(
        Points(
            label,
            tuple(float(row[key]) for row in rows if row[key] is not None),
            tuple(float(i) for i, row in enumerate(rows) if row[key] is not None),
            join="none",
            style=style,
        )
        for style, (key, label) in enumerate(
            (("faster", "latency"), ("more", "throughput"))
        )
    )
    panel = Panel(
        x_label="Times plain decoding with a cache",
        y_label="",
        marks=marks,
        guides=(Guide("x", 1.0, "cache"),),
        x_scale="log",
        categories=names,
        height=1.5,
    )
    num_prompts = len(measured.run(REFERENCE).outcomes)
    return Chart(f"Ways to decode (n = {num_prompts} prompts)", (panel,))


STUDY = Study(answer=answer)
