"""What recording costs a decoder: nothing recorded, steps, nodes, on one real model.

    python benchmarks/recording.py MODEL [--prompts 8] [--tokens 48] [--repeats 5]

MODEL is a folder of Hugging Face. Every prompt is decoded with the same trees (lookup,
then token recycling, best-first, 8 nodes) in three ways, in one process, in turns whose
order rotates:

- ``nothing``: the record of a step is a constant;
- ``steps``: as every run does it;
- ``nodes``: as with ``trace=nodes``.

Two measures, as one checks the other. The *share* is what the recording functions
took, by a clock around them, over the decode seconds of the same requests. The *ratio*
is decode seconds over those of the way before it, median over repeats, geometric mean
over prompts with a 95% BCa interval; it sees side effects too, and the noise of the
machine.

Records of nodes are made after a request's clock has stopped, so that tracing does not
slow what it looks at: their share is of time that only the caller waits. Apart from
them stands the best acceptance that any rule could have (``optimal_acceptance``), an
analysis of the whole law at every evaluated node.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from common import Task, machine, rotated, table
from ours import BEST_FIRST, MODEL_FREE, TREE
from treespec import decoder as loop
from treespec import recording
from treespec.acceptance import Greedy
from treespec.datasets.shipped import ShippedDataset
from treespec.decoder import SpeculativeDecoder
from treespec.models.loading import load
from treespec.models.source import ModelSource
from treespec.stats import geometric_mean, geometric_mean_interval
from treespec.types import StepRecord
from treespec.verifiers import TreeAttention

WAYS = ("nothing", "steps", "nodes")
PARTS = ("step records", "node records", "optimal acceptance")


@dataclass(slots=True)
class Spent:
    """Seconds in the recording functions, by part."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def timed(self, part: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same under a clock."""

        def outer(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = inner(*arguments)
            self.seconds[part] += time.perf_counter() - start
            return result

        return outer


@dataclass(frozen=True, slots=True)
class Turn:
    """One text, decoded in one of the ways.

    Attributes:
        decode_s: Decode seconds, by the request's own clock.
        wall_s: Seconds that the caller waited, prefill included.
        spent: Seconds in the recording functions.
        num_steps: Steps.
        num_nodes: Drafted nodes.
    """

    decode_s: float
    wall_s: float
    spent: dict[str, float]
    num_steps: int
    num_nodes: int


@contextmanager
def watched(way: str) -> Iterator[Spent]:
    """Time the recording functions; make them do nothing if nothing is recorded."""
    spent = Spent()
    record, trace, optima = loop.record_step, loop.trace_nodes, recording._optima
    known: list[StepRecord] = []

    def constant(*arguments: Any) -> StepRecord:
        if not known:
            known.append(record(*arguments))
        return known[0]

    loop.record_step = (
        constant if way == "nothing" else spent.timed("step records", record)
    )
    loop.trace_nodes = spent.timed("node records", trace)
    recording._optima = spent.timed("optimal acceptance", optima)
    try:
        yield spent
    finally:
        loop.record_step, loop.trace_nodes, recording._optima = record, trace, optima


def decode(decoder: SpeculativeDecoder, task: Task, tokens: int, way: str) -> Turn:
    """Decode a prompt in one of the ways."""
    traced = replace(decoder, trace=way == "nodes")
    with watched(way) as spent:
        start = time.perf_counter()
        (result,) = traced.generate([task.tokens], max_new_tokens=tokens)
        wall_s = time.perf_counter() - start
    spent.seconds["node records"] -= spent.seconds["optimal acceptance"]
    return Turn(
        decode_s=result.decode_s,
        wall_s=wall_s,
        spent=spent.seconds,
        num_steps=len(result.steps),
        num_nodes=sum(step.num_nodes for step in result.steps),
    )


def measure(
    decoder: SpeculativeDecoder, tasks: Sequence[Task], tokens: int, repeats: int
) -> dict[str, dict[str, list[Turn]]]:
    """Return the turns of every way and prompt, in rotated order, after a warm-up."""
    turns: dict[str, dict[str, list[Turn]]] = {way: defaultdict(list) for way in WAYS}
    for way in WAYS:
        decode(decoder, tasks[0], tokens, way)
    for repeat in range(repeats):
        for place, task in enumerate(tasks):
            for way in rotated(WAYS, repeat + place):
                turns[way][task.name].append(decode(decoder, task, tokens, way))
    return turns


def ratio(slow: dict[str, list[Turn]], fast: dict[str, list[Turn]]) -> str:
    """Return decode seconds over decode seconds, in percent more, with an interval."""
    ratios = [
        statistics.median(turn.decode_s for turn in slow[name])
        / statistics.median(turn.decode_s for turn in fast[name])
        for name in slow
    ]
    mean = geometric_mean(ratios)
    interval = geometric_mean_interval(ratios, np.random.default_rng(0))
    assert mean is not None
    if interval is None:
        return f"{100 * (mean - 1):+.2f}%"
    low, high = 100 * (interval.low - 1), 100 * (interval.high - 1)
    return f"{100 * (mean - 1):+.2f}% ({low:+.2f} to {high:+.2f})"


def show(turns: dict[str, dict[str, list[Turn]]]) -> None:
    """Print the table."""
    every = {way: [t for of in turns[way].values() for t in of] for way in WAYS}
    steps = every["steps"]
    step_ms = 1e3 * sum(t.decode_s for t in steps) / sum(t.num_steps for t in steps)
    mean_nodes = sum(t.num_nodes for t in steps) / sum(t.num_steps for t in steps)
    print(
        f"\n{len(steps)} texts a way; steps of {step_ms:.1f} ms, {mean_nodes:.1f} nodes"
    )
    rows = []
    for way in ("steps", "nodes"):
        for part in PARTS[: 1 if way == "steps" else 3]:
            spent = sum(turn.spent[part] for turn in every[way])
            of = sum(turn.decode_s for turn in every[way])
            per_step = 1e6 * spent / sum(turn.num_steps for turn in every[way])
            rows.append((way, part, f"{100 * spent / of:.3f}%", f"{per_step:.0f} us"))
    print()
    print(table(("way", "part", "share", "a step"), rows))
    print("\ndecode seconds, by the request's clock")
    print(f"steps over nothing  {ratio(turns['steps'], turns['nothing'])}")
    print(f"nodes over steps    {ratio(turns['nodes'], turns['steps'])}")
    print(f"nothing over itself {_halves(turns['nothing'])}  (the noise of all this)")


def _halves(turns: dict[str, list[Turn]]) -> str:
    """Return the ratio of odd to even repeats of one way: what no difference shows."""
    odd = {name: of[1::2] for name, of in turns.items()}
    even = {name: of[::2] for name, of in turns.items()}
    return ratio(odd, even) if all(odd.values()) else "needs --repeats 2"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    loaded = load(ModelSource(path=given.model, dtype="float32"))
    decoder = SpeculativeDecoder(
        target=loaded.model,
        drafter=MODEL_FREE,
        policy=BEST_FIRST,
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=TREE,
        tokenizer=loaded.tokenizer,
        eos_ids=frozenset(loaded.eos_ids),
    )
    tasks = [
        Task(
            prompt.id,
            prompt.category,
            tuple(
                loaded.tokenizer.chat([{"role": "user", "content": prompt.turns[0]}])
            ),
        )
        for prompt in ShippedDataset().load(given.prompts)
    ]
    print(machine())
    show(measure(decoder, tasks, given.tokens, given.repeats))


if __name__ == "__main__":
    main()
