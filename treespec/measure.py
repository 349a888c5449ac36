"""Decodes every prompt twice, by the strategy and its baseline, and compares the texts.

Both in one process, in rotated order (baseline first; then strategy first), after a
warm-up that no timing sees. Knows neither files nor configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from treespec.audit import Ending, Finding, audit, audit_alone, texts_must_agree
from treespec.baselines import Autoregressive, Decodes, ReadyBaseline
from treespec.decoder import SpeculativeDecoder
from treespec.errors import NumericalError
from treespec.forwards import Forwards
from treespec.metrics import Summary, summarize
from treespec.outcome import PromptOutcome, Quality
from treespec.quality import mean_token_logprob
from treespec.sampling import Sampling
from treespec.stopwatch import Stopwatch
from treespec.types import GenerationResult

WARMUP_TOKENS = 16
"""New tokens of the warm-up."""
WARMUP_NODES = 64
"""Largest tree of the warm-up."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, ready to decode.

    Attributes:
        id: Its name; with the run's seed it determines what the prompt draws.
        category: What kind of task it is.
        tokens: Its token ids.
    """

    id: str
    category: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """What both sides have in common.

    Attributes:
        sampling: How logits become a law.
        max_new_tokens: Most new tokens per prompt.
        seed: Seed of the run.
        stop: Strings that end a text.
        warmup: Whether to warm up.
    """

    sampling: Sampling
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    warmup: bool = True


def measure(
    decoder: SpeculativeDecoder,
    tasks: Sequence[Task],
    measurement: Measurement,
    take: Callable[[PromptOutcome], None],
    say: Callable[[str], None],
    baseline: ReadyBaseline | None = None,
) -> Summary:
    """Return the numbers of all prompts.

    As many prompts as ``decoder.max_concurrent`` are decoded together.

    Args:
        decoder: With speculation.
        tasks: The prompts.
        measurement: What both sides have in common.
        take: Called with every finished prompt, in order.
        say: Called with what is being done.
        baseline: What it is compared with; the decoder's own autoregressive twin if
            there is none.
    """
    if baseline is None:
        baseline = Autoregressive().ready(decoder, measurement.sampling, {})
    if measurement.warmup:
        say("warming up")
        _warm_up(decoder, baseline.decodes, tasks, measurement)
    size = decoder.max_concurrent
    batches = [tasks[start : start + size] for start in range(0, len(tasks), size)]
    outcomes: list[PromptOutcome] = []
    wall_s, peak_bytes = 0.0, None
    for number, batch in enumerate(batches):
        say(f"decoding {batch[0].id}")
        sides: list[Decodes] = [baseline.decodes, decoder]
        timed = {
            side is decoder: _decode(side, decoder.target.device, batch, measurement)
            for side in (sides if number % 2 == 0 else reversed(sides))
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
                speculative=speculative,
                baseline=plain,
                lossless=finding.verdict,
                divergence=finding.divergence,
                quality=_quality(decoder, plain, speculative) if lossy else None,
            )
            outcomes.append(outcome)
            take(outcome)
    return summarize(outcomes, wall_s, peak_bytes, baseline.name)


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
