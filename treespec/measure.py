"""Decodes every prompt twice, by the strategy and its baseline, and compares the texts.

Both in one process, in rotated order (baseline first; then strategy first), after a
warm-up that no timing sees. Knows neither files nor configuration.

A conversation is decoded turn by turn, and each turn twice like a prompt of its own.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from treespec.audit import Ending, Finding, audit, audit_alone, texts_must_agree
from treespec.baselines import Autoregressive, Decodes, ReadyBaseline
from treespec.datasets.base import Prompt
from treespec.decoder import SpeculativeDecoder
from treespec.errors import NumericalError
from treespec.forwards import Forwards
from treespec.measures import AbstractQualityMeasure
from treespec.metrics import Summary, summarize
from treespec.outcome import PromptOutcome, Quality, Score
from treespec.quality import mean_token_logprob
from treespec.sampling import Sampling
from treespec.stopwatch import Stopwatch
from treespec.types import GenerationResult

WARMUP_TOKENS = 16
"""New tokens of the warm-up."""
WARMUP_NODES = 64
"""Largest tree of the warm-up."""


def _no_turn(answer: str) -> Task | None:
    """Return what follows the answer to a prompt of one turn."""
    return None


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, or one turn of it, ready to decode.

    Attributes:
        id: Its name; with the run's seed it determines what the prompt draws.
        category: What kind of task it is.
        tokens: Its token ids.
        prompt: Where it comes from, with good answers; ``None`` if nobody judges it.
        turn: Which turn of its prompt it is, from 1.
        after: From plain decoding's answer to the next turn, if there is one.
    """

    id: str
    category: str
    tokens: tuple[int, ...]
    prompt: Prompt | None = None
    turn: int = 1
    after: Callable[[str], Task | None] = _no_turn


@dataclass(frozen=True, slots=True)
class Measurement:
    """What both sides have in common.

    Attributes:
        sampling: How logits become a law.
        max_new_tokens: Most new tokens per prompt.
        seed: Seed of the run.
        stop: Strings that end a text.
        warmup: Whether to warm up.
        measures: What judges the texts, after they were timed.
    """

    sampling: Sampling
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    warmup: bool = True
    measures: tuple[AbstractQualityMeasure, ...] = ()


def measure(
    decoder: SpeculativeDecoder,
    tasks: Sequence[Task],
    measurement: Measurement,
    take: Callable[[PromptOutcome], None],
    say: Callable[[str], None],
    baseline: ReadyBaseline | None = None,
) -> Summary:
    """Return the numbers of all prompts.

    As many prompts as ``decoder.max_concurrent`` are decoded together. The turns of a
    prompt follow each other, each with an outcome.

    Args:
        decoder: With speculation.
        tasks: The prompts.
        measurement: What both sides have in common.
        take: Called with every finished prompt (or turn), in order.
        say: Called with what is being done.
        baseline: What it is compared with; the decoder's own autoregressive twin if
            there is none.
    """
    if baseline is None:
        baseline = Autoregressive().ready(decoder, measurement.sampling, {})
    if measurement.warmup:
        say("warming up")
        _warm_up(decoder, baseline.decodes, tasks, measurement)
    outcomes: list[PromptOutcome] = []
    wall_s, peak_bytes = 0.0, None
    waiting = Waiting(tasks, decoder.max_concurrent)
    num_started = 0
    for batch in waiting:
        num_started += batch[0].turn == 1
        say(f"decoding {batch[0].id}")
        # The turns of a prompt rotate as well, and not all second turns alike.
        plain_first = (num_started + batch[0].turn) % 2 == 0
        sides: list[Decodes] = [baseline.decodes, decoder]
        timed = {
            side is decoder: _decode(side, decoder.target.device, batch, measurement)
            for side in (sides if plain_first else reversed(sides))
        }
        wall_s += timed[True].wall_s
        peak_bytes = _larger(peak_bytes, timed[True].peak_bytes)
        pairs = zip(batch, timed[False].results, timed[True].results, strict=True)
        for task, plain, speculative in pairs:
            finding = _judge(decoder, baseline, measurement, plain, speculative)
            lossy = not decoder.acceptance.lossless
            outcome = PromptOutcome(
                id=task.id,
                category=task.category,
                turn=task.turn,
                scores=_scores(measurement, task, plain, speculative),
                speculative=speculative,
                baseline=plain,
                lossless=finding.verdict,
                divergence=finding.divergence,
                quality=_quality(decoder, plain, speculative) if lossy else None,
            )
            outcomes.append(outcome)
            take(outcome)
            waiting.answered(task, plain.text or "")
    return summarize(outcomes, wall_s, peak_bytes, baseline.name)


class Waiting:
    """The batches that are still to be decoded; later turns come as they are known."""

    def __init__(self, tasks: Sequence[Task], size: int) -> None:
        starts = range(0, len(tasks), size)
        self._batches = deque(list(tasks[start : start + size]) for start in starts)
        self._later: list[Task] = []

    def __iter__(self) -> Iterator[list[Task]]:
        while self._later or self._batches:
            batch = self._later or self._batches.popleft()
            self._later = []
            yield batch

    def answered(self, task: Task, answer: str) -> None:
        """Put a task's next turn, if there is one, into the next batch."""
        later = task.after(answer)
        if later is not None:
            self._later.append(later)


def prompt_seed(seed: int, prompt_id: str) -> int:
    """Return a prompt's own seed: no neighbour and no order can change it."""
    digest = hashlib.sha256(f"{seed}\0{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class _Timed:
    """One side's results for a batch, and what they took."""

    results: list[GenerationResult]
    wall_s: float
    peak_bytes: int | None


def _decode(
    side: Decodes,
    device: torch.device,
    batch: Sequence[Task],
    measurement: Measurement,
) -> _Timed:
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    watch = Stopwatch(device)
    try:
        results = side.generate(
            [task.tokens for task in batch],
            measurement.sampling,
            measurement.max_new_tokens,
            [prompt_seed(measurement.seed, task.id) for task in batch],
            measurement.stop,
        )
    except NumericalError as error:
        names = ", ".join(repr(task.id) for task in batch)
        raise NumericalError(f"while decoding {names}: {error}") from error
    wall_s = watch.total()
    # The host's memory has no high-water mark that could be reset per side.
    peak = torch.cuda.max_memory_allocated(device) if on_cuda else None
    return _Timed(results, wall_s, peak)


def _judge(
    decoder: SpeculativeDecoder,
    baseline: ReadyBaseline,
    measurement: Measurement,
    plain: GenerationResult,
    speculative: GenerationResult,
) -> Finding:
    """Hold the strategy's text against the baseline's, or the target's own choices.

    Another implementation draws otherwise than the decoder, and in 8 and 16 bits it
    rounds otherwise: then the strategy's text is judged by its own target alone.
    """
    if not decoder.acceptance.lossless:
        return Finding("lossy")
    sampling = measurement.sampling
    if not texts_must_agree(decoder.acceptance, sampling):
        return Finding("unchecked")
    if not (sampling.greedy or baseline.draws_alike):
        return Finding("unchecked")
    ending = Ending(measurement.max_new_tokens, decoder.eos_ids)
    compare = audit if baseline.rounds_alike else audit_alone
    return compare(decoder.target, sampling, plain, speculative, ending)


def _quality(
    decoder: SpeculativeDecoder,
    baseline: GenerationResult,
    speculative: GenerationResult,
) -> Quality:
    return Quality(
        mean_token_logprob=mean_token_logprob(decoder.target, speculative),
        baseline_mean_token_logprob=mean_token_logprob(decoder.target, baseline),
    )


def _scores(
    measurement: Measurement,
    task: Task,
    baseline: GenerationResult,
    speculative: GenerationResult,
) -> tuple[Score, ...]:
    prompt, turn = task.prompt, task.turn
    if prompt is None:
        return ()
    texts = speculative.text or "", baseline.text or ""
    return tuple(
        measure.score(prompt, turn, *texts)
        for measure in measurement.measures
        if measure.applies(prompt, turn)
    )


def _warm_up(
    decoder: SpeculativeDecoder,
    baseline: Decodes,
    tasks: Sequence[Task],
    measurement: Measurement,
) -> None:
    """Let both sides work, then the target on every number of rows it may meet.

    Without the drafter's memory: it would know the first prompt's text by heart.
    """
    for side in (baseline, replace(decoder, drafter=decoder.drafter.cold())):
        side.generate(
            [task.tokens for task in tasks[: decoder.max_concurrent]],
            measurement.sampling,
            min(WARMUP_TOKENS, measurement.max_new_tokens),
        )
    _warm_up_row_counts(decoder, tasks[0].tokens)


@torch.inference_mode()
def _warm_up_row_counts(decoder: SpeculativeDecoder, tokens: tuple[int, ...]) -> None:
    """Verify a tree of every size that the controller may ask for.

    Kernels choose their plan by the number of rows; the first choice takes time.
    """
    largest = decoder.controller.largest
    if not largest.speculates:
        return
    target = decoder.target
    text = tokens[: target.max_positions - 1]
    most_nodes = min(largest.most_nodes, WARMUP_NODES)
    forwards = Forwards(target, text[-1:], most_nodes)
    for num_nodes in range(1, most_nodes + 1):
        forwards.run(num_nodes)


def _larger(left: int | None, right: int | None) -> int | None:
    """Return the larger of two measurements, if there were any."""
    known = [value for value in (left, right) if value is not None]
    return max(known, default=None)
