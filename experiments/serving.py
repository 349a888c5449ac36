"""What requests and the machine had of a run: latencies, and throughput under load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from treespec.sinks.reader import Run
from treespec.types import GenerationResult

Side = Literal["speculative", "baseline"]


@dataclass(frozen=True, slots=True)
class Served:
    """Requests that were served, so many at once.

    Attributes:
        latencies_ms: Milliseconds from admission to the last token, by request.
        num_tokens: Their new tokens, all together.
        wall_s: Seconds in which all of them were served.
    """

    latencies_ms: tuple[float, ...]
    num_tokens: int
    wall_s: float

    @property
    def requests_per_s(self) -> float | None:
        """Requests per second of the machine."""
        return _ratio(len(self.latencies_ms), self.wall_s)

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens per second of the machine, prompts being read meanwhile."""
        return _ratio(self.num_tokens, self.wall_s)

    @property
    def mean_ms(self) -> float | None:
        """Mean latency."""
        return _ratio(sum(self.latencies_ms), len(self.latencies_ms))

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile of the latencies."""
        if not self.latencies_ms:
            return None
        return float(np.percentile(self.latencies_ms, percent))


def served(
    runs: Iterable[Run], side: Side, prompts: Sequence[str] | None = None
) -> Served:
    """Return what one side served in some runs.

    Requests of a batch are admitted together, and the next batch when all have ended,
    so a batch takes as long as its slowest request.

    Args:
        runs: The runs.
        side: The strategy or its baseline.
        prompts: Names of the prompts that count; ``None`` for all. Only whole batches
            make sense, or one request at once.
    """
    latencies: list[float] = []
    num_tokens, wall_s = 0, 0.0
    for run in runs:
        results = [
            _result(outcome, side)
            for outcome in run.outcomes
            if prompts is None or outcome.id in prompts
        ]
        size = int(run.config["max_concurrent"])
        for start in range(0, len(results), size):
            batch = [r.prefill_s + r.decode_s for r in results[start : start + size]]
            wall_s += max(batch)
            latencies += [1e3 * seconds for seconds in batch]
        num_tokens += sum(len(result.tokens) for result in results)
    return Served(tuple(latencies), num_tokens, wall_s)


def prompt_ids(run: Run) -> list[str]:
    """Return the names of a run's prompts."""
    return [outcome.id for outcome in run.outcomes]


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return a quotient, if both numbers are known."""
    if numerator is None or denominator is None:
        return None
    return _ratio(numerator, denominator)


def _result(outcome: object, side: Side) -> GenerationResult:
    result: GenerationResult = getattr(outcome, side)
    return result


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator > 0 else None
