"""What the benchmarks share: prompts, timing by hooks, the machine, statistics."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers

from treespec.models.base import AbstractLanguageModel, ForwardRows, ModelOutput
from treespec.models.cache import SlotCache
from treespec.models.tokenizer import HuggingFaceTokenizer
from treespec.stats import Interval, bootstrap_interval

CATEGORIES = (
    "humaneval",
    "writing",
    "coding",
    "translation",
    "summarization",
    "qa",
    "math_reasoning",
    "rag",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt."""

    name: str
    category: str
    tokens: tuple[int, ...]


def read_tasks(
    files: Iterable[str],
    categories: Sequence[str],
    count: int,
    tokenizer: HuggingFaceTokenizer,
    max_text_tokens: int | None = None,
) -> list[Task]:
    """Return the first ``count`` prompts of every category.

    Args:
        files: JSONL with ``id``, ``category`` (or ``subcategory``), ``turns``, and
            ``chat``: false for raw completions.
        categories: Those that are wanted.
        count: Prompts of each.
        tokenizer: The target's.
        max_text_tokens: Where longer first turns are cut.
    """
    seen: dict[str, int] = defaultdict(int)
    tasks = []
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            category = row.get("subcategory") or row["category"]
            if category not in categories or seen[category] == count:
                continue
            seen[category] += 1
            text = row["turns"][0]
            if max_text_tokens is not None:
                text = tokenizer.decode(tokenizer.encode(text)[:max_text_tokens])
            tokens = (
                tokenizer.chat([{"role": "user", "content": text}])
                if row.get("chat", True)
                else tokenizer.encode(text)
            )
            tasks.append(Task(str(row["id"]), category, tuple(tokens)))
    return tasks


@dataclass(frozen=True, slots=True)
class Forward:
    """One forward of a module, seen from outside."""

    num_rows: int
    seconds: float


@dataclass(slots=True)
class Forwards:
    """The forwards of models, timed the same way for whoever calls them."""

    seen: list[Forward] = field(default_factory=list)
    _start: float = 0.0
    _watched: set[int] = field(default_factory=set)

    def watch(self, module: torch.nn.Module) -> None:
        """Time a stock module's forwards from now on."""
        module.register_forward_pre_hook(self._before, with_kwargs=True)
        module.register_forward_hook(self._after, with_kwargs=True)

    def watch_model(self, model: AbstractLanguageModel) -> None:
        """Time a model's forwards from now on.

        Around the model: a hook on its module would keep it from the faster forward.
        """
        if id(model) in self._watched:
            return
        self._watched.add(id(model))
        inner = model.forward

        def forward(
            rows: ForwardRows, cache: SlotCache, hidden_layers: tuple[int, ...] = ()
        ) -> ModelOutput:
            start = time.perf_counter()
            output = inner(rows, cache, hidden_layers)
            elapsed = time.perf_counter() - start
            self.seen.append(Forward(rows.tokens.shape[0], elapsed))
            return output

        model.forward = forward

    def clear(self) -> None:
        """Begin again."""
        self.seen.clear()

    @property
    def seconds(self) -> float:
        """Seconds of all forwards."""
        return math.fsum(forward.seconds for forward in self.seen)

    def reading_s(self, num_tokens: int) -> float:
        """Return the seconds of the first forwards, until so many rows were read."""
        total, seconds = 0, 0.0
        for forward in self.seen:
            if total >= num_tokens:
                break
            total += forward.num_rows
            seconds += forward.seconds
        return seconds

    def _before(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self._start = time.perf_counter()

    def _after(
        self, module: torch.nn.Module, args: tuple, kwargs: dict, output: object
    ) -> None:
        elapsed = time.perf_counter() - self._start
        tokens = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self.seen.append(Forward(tokens.shape[1], elapsed))


@dataclass(frozen=True, slots=True)
class Load:
    """The machine's clocks at one moment, to see who else was using it (Linux)."""

    wall_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls) -> Load:
        """Read the clocks."""
        user, nice, system, _, _, irq, softirq, steal = (
            int(part)
            for part in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
        )
        ticks = user + nice + system + irq + softirq + steal
        busy_s = ticks / os.sysconf("SC_CLK_TCK")
        return cls(time.perf_counter(), busy_s, time.process_time())

    def foreign_since(self, before: Load) -> float:
        """Return the share of all processors' time that other processes used."""
        others = (self.busy_s - before.busy_s) - (self.own_s - before.own_s)
        wall_s = self.wall_s - before.wall_s
        return max(0.0, others / wall_s / (os.cpu_count() or 1))


def machine() -> str:
    """Return versions and hardware in a line."""
    return (
        f"python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {os.cpu_count()} CPUs, "
        f"{torch.get_num_threads()} threads, CPU capability "
        f"{torch.backends.cpu.get_cpu_capability()}"
    )


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of ratios, and its 95% BCa interval over prompts."""

    mean: float
    interval: Interval | None

    def __str__(self) -> str:
        """Return the mean, and the interval if there is one."""
        if self.interval is None:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} ({self.interval.low:.3f} to {self.interval.high:.3f})"


def by_category(ratios: Mapping[str, Sequence[float]]) -> Ratio:
    """Return the geometric mean over categories of their geometric means.

    Args:
        ratios: By category, one ratio per prompt. Where categories have unequal
            numbers of prompts, prompts are weighted in the interval.
    """
    rows = [
        (math.log(ratio) / len(of_category), 1 / len(of_category))
        for of_category in ratios.values()
        for ratio in of_category
    ]
    interval = bootstrap_interval(
        np.array(rows),
        lambda sums: np.exp(sums[..., 0] / sums[..., 1]),
        np.random.default_rng(0),
    )
    means = [statistics.geometric_mean(r) for r in ratios.values()]
    return Ratio(statistics.geometric_mean(means), interval)


def rotated(names: Sequence[str], number: int) -> list[str]:
    """Return the methods in the order of their turns on one prompt."""
    shift = number % len(names)
    return [*names[shift:], *names[:shift]]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells in columns, the first one flush left."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
