"""From a job to a run folder: checks, models, two decodes per prompt, the verdict.

Knows no Hydra: whoever has a ``Job`` can run it. What needs no weights is checked
first; the run folder appears when decoding begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from treespec.baselines import ReadyBaseline
from treespec.conversation import first_turns
from treespec.datasets.base import Prompt
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import AbstractDrafter
from treespec.environment import describe_machine
from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json
from treespec.job import DRAFT, TARGET, Job
from treespec.loaded_models import FoundModel, LoadedModels, free_memory
from treespec.measure import Measurement, measure
from treespec.measures import AbstractQualityMeasure
from treespec.metrics import Summary
from treespec.models.base import AbstractLanguageModel
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.loading import inspect, locate
from treespec.models.source import check_source, resolve_device
from treespec.models.stock import load_stock
from treespec.models.vocabulary import check_pair
from treespec.neighbours import Neighbours, beside, device_name
from treespec.outcome import PromptOutcome
from treespec.profile_cache import about_pair, kept_profile
from treespec.sinks.base import RunInfo, recording, status_of
from treespec.sinks.run_folder import SUMMARY, RunDoneError, RunFolderSink, is_done
from treespec.sinks.terminal import render
from treespec.tasks import Task
from treespec.untimed import with_neighbours


class LosslessViolationError(RuntimeError):
    """A text that should be the target's own is not, by more than numerical noise."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What became of a job.

    Attributes:
        folder: Where its files are.
        skipped: Whether it was finished before.
        summary: Its numbers.
    """

    folder: Path
    skipped: bool
    summary: Summary


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose models are loaded.

    Attributes:
        tasks: The prompts' first turns as token ids.
        environment: What the models are.
        decoder: With the job's strategies.
    """

    tasks: list[Task]
    environment: dict[str, Any]
    decoder: SpeculativeDecoder


def run(job: Job, models: LoadedModels | None = None) -> RunReport:
    """Run a job, or find that it is done.

    Args:
        job: The job.
        models: What the jobs before it left in memory, and this one leaves for the
            next; ``None`` loads what it needs and keeps nothing.

    Raises:
        TreespecError: The job cannot work; if before decoding, nothing was written.
        LosslessViolationError: The run is complete, and its texts are not lossless.
    """
    if is_done(job.folder) and not job.settings.force:
        return _skip(job.folder)
    models = LoadedModels() if models is None else models
    try:
        return _run(job, models)
    except RunDoneError:
        return _skip(job.folder)
    except (TreespecError, LosslessViolationError):
        raise
    except BaseException:  # out of memory, say: the next job begins with all of it
        models.clear()
        raise
    finally:
        free_memory()


def _run(job: Job, models: LoadedModels) -> RunReport:
    check(job)
    warnings = [quality.note() for quality in job.measures]
    for note in (*job.notes(), *filter(None, warnings)):
        _say(f"note: {note}")
    with beside(_devices(job)) as neighbours:
        return _decode(job, models, neighbours)


def _decode(job: Job, models: LoadedModels, neighbours: Neighbours) -> RunReport:
    try:
        prepared = with_costs(job, prepare(job, models))
        baseline = ready_baseline(job, prepared.decoder)
    except TreespecError:
        raise
    except Exception as error:  # out of memory, say: leave a record of it
        _record_failure(job, error, neighbours)
        raise
    settings, tasks = job.settings, prepared.tasks
    environment = {**prepared.environment, "baseline": baseline.name}
    info = _run_info(job, environment, neighbours)
    num_turns = sum(len(prompt.turns) for prompt in job.prompts)
    unit = "turn" if num_turns > len(tasks) else "prompt"
    bar = tqdm(total=num_turns, desc="getting ready", unit=unit)
    with recording(job.sinks, info) as record, bar:
        progress = _Progress(bar, info.is_timed)

        def take(outcome: PromptOutcome) -> None:
            record.prompt(outcome)
            progress.show(outcome)

        measurement = Measurement(
            sampling=job.sampling,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            stop=tuple(settings.stop),
            warmup=settings.warmup,
            measures=job.measures,
            repeats=settings.repeats,
        )
        measured = measure(
            prepared.decoder, tasks, measurement, take, progress.say, baseline
        )
        summary = with_neighbours(measured, neighbours.count())
        bar.close()
        record.summary = summary
        _check_verdict(summary)
    return RunReport(job.folder, skipped=False, summary=summary)


def prepare(job: Job, models: LoadedModels | None = None) -> Prepared:
    """Find the models, read the prompts with their tokenizer, and load the weights.

    Args:
        job: The job.
        models: As in ``run``.

    Raises:
        TreespecError: A model is not there, or a prompt or the pair does not fit it.
    """
    found = _find_models(job)
    tasks = first_turns(job.prompts, found[0].info, TARGET)
    held = LoadedModels() if models is None else models
    environment, decoder = _load(job, found, held)
    return Prepared(tasks, environment, decoder)


def with_costs(job: Job, prepared: Prepared) -> Prepared:
    """Tell the policy what forwards cost here, if it asks; measures them if need be.

    The costs are part of the run's environment, as decisions depend on them.

    Raises:
        TreespecError: Too few timings are seconds.
    """
    policy = prepared.decoder.policy
    if not policy.wants_costs:
        return prepared
    about = about_pair(prepared.environment["models"], job.config["drafter"])
    costs = kept_profile(prepared.decoder, about, say=_say).profile.costs
    return Prepared(
        tasks=prepared.tasks,
        environment={**prepared.environment, "costs": costs.to_json()},
        decoder=replace(prepared.decoder, policy=policy.with_costs(costs)),
    )


def check(job: Job) -> None:
    """Refuse what cannot work; reads no file of a model and no network.

    Raises:
        TreespecError: Names the key and the way out.
    """
    parts, sampling = job.strategies, job.sampling
    parts.acceptance.check(
        parts.policy.proposal,
        parts.policy.max_children,
        parts.policy.ends_siblings_early,
        sampling,
        type(parts.policy).__name__,
    )
    check_source(job.target, TARGET)
    if job.draft is not None:
        check_source(job.draft, DRAFT)
    elif DRAFT in parts.needs:
        raise TreespecError(
            f"drafter needs {DRAFT}, but the pair has no draft model: choose one, such "
            f"as pair=qwen25_coder, or give {DRAFT}.path=DIR with pair=custom, or use "
            "drafter=prompt_lookup"
        )
    _check_baseline(job)
    for quality in job.measures:
        _check_quality(quality, job.prompts)
    for sink in job.sinks:
        sink.check(job.folder)


def _check_baseline(job: Job) -> None:
    job.baseline.check(job.sampling, job.settings.max_concurrent)
    if DRAFT in job.baseline.needs and job.draft is None:
        raise TreespecError(
            f"baseline={job.baseline.name} needs {DRAFT}, but the pair has no draft "
            f"model; give {DRAFT}.path=DIR with pair=custom, or choose another baseline"
        )


def ready_baseline(job: Job, decoder: SpeculativeDecoder) -> ReadyBaseline:
    """Return the job's baseline with the modules of its own that it needs.

    Raises:
        TreespecError: A model is not there, or the draft has another vocabulary.
    """
    sources = {TARGET: job.target, DRAFT: job.draft}
    located = {
        key: locate(source, key)
        for key, source in sources.items()
        if source is not None and key in job.baseline.needs
    }
    if DRAFT in located:
        vocabularies = [
            inspect(found, k).tokenizer.vocab() for k, found in located.items()
        ]
        check_pair(*vocabularies)
    stock = {}
    for key, found in located.items():
        _say(f"loading the {key.removeprefix('pair.')} model for {job.baseline.name}")
        stock[key] = load_stock(found, key, exact=key == TARGET)
    return job.baseline.ready(decoder, job.sampling, stock)


def _check_quality(quality: AbstractQualityMeasure, prompts: Sequence[Prompt]) -> None:
    """Refuse a measure that cannot be used, or by which no prompt can be judged."""
    quality.check()
    turns = [(p, turn) for p in prompts for turn in range(1, len(p.turns) + 1)]
    if not any(quality.applies(*turn) for turn in turns):
        raise TreespecError(
            f"quality.{quality.name} needs {quality.needs}, and none of the "
            f"{len(prompts)} prompts has it; choose another dataset, or leave it out"
        )


def _find_models(job: Job) -> list[FoundModel]:
    """Locate the models that are needed, the target first, and compare vocabularies."""
    sources = {TARGET: job.target}
    if job.draft is not None and DRAFT in job.strategies.needs:
        sources[DRAFT] = job.draft
    found = []
    for key, source in sources.items():
        located = locate(source, key)
        info = inspect(located, key)
        found.append(FoundModel(key, located, info, exact=key == TARGET))
    if len(found) == 2:
        target, draft = found
        check_pair(
            target.info.tokenizer.vocab(),
            draft.info.tokenizer.vocab(),
            allow_mismatch=job.allow_mismatch,
        )
    return found


def _load(
    job: Job, found: Sequence[FoundModel], held: LoadedModels
) -> tuple[dict[str, Any], SpeculativeDecoder]:
    """Read the weights; return what they are, and the decoder."""
    models: dict[str, AbstractLanguageModel] = {}
    described: dict[str, Any] = {}
    for part in found:
        word = "keeping" if held.holds(part) else "loading"
        name = part.key.removeprefix("pair.")
        _say(f"{word} the {name} model: {part.located.name}")
    for part, kept in zip(found, held.hold(found), strict=True):
        attention = part.located.source.attn_implementation
        models[part.key] = HuggingFaceModel(kept.module, attention, exact=part.exact)
        described[part.key.removeprefix("pair.")] = kept.described
    parts, info = job.strategies, found[0].info
    drafter = parts.drafter
    if not isinstance(drafter, AbstractDrafter):
        drafter = drafter(models)
    decoder = SpeculativeDecoder(
        target=models[TARGET],
        drafter=drafter,
        policy=parts.policy,
        acceptance=parts.acceptance,
        verifier=parts.verifier,
        controller=parts.controller,
        tokenizer=info.tokenizer,
        eos_ids=frozenset(info.eos_ids),
        max_concurrent=job.settings.max_concurrent,
        trace=job.settings.trace == "nodes",
    )
    # Both sides use this one set; a model's own sampling defaults are not inherited.
    resolved = {
        "sampling": {
            "temperature": job.sampling.temperature,
            "top_k": job.sampling.top_k,
            "top_p": job.sampling.top_p,
            "repetition_penalty": job.sampling.repetition_penalty,
            "processors": [type(p).__name__ for p in job.sampling.processors],
        },
        "eos_ids": sorted(decoder.eos_ids),
    }
    return {"models": described, "decoding": resolved}, decoder


def _devices(job: Job) -> Iterator[str]:
    """Yield the names of the devices that a job works on."""
    yield device_name(resolve_device(job.target, TARGET))
    if job.draft is not None and DRAFT in job.strategies.needs:
        yield device_name(resolve_device(job.draft, DRAFT))


def _run_info(
    job: Job, environment: Mapping[str, Any], neighbours: Neighbours
) -> RunInfo:
    lossless = "lossless" if job.strategies.acceptance.lossless else "lossy"
    device = environment.get("models", {}).get("target", {}).get("device")
    return RunInfo(
        run_key=job.run_key,
        sweep_name=job.settings.sweep_name,
        folder=job.folder,
        config=job.config,
        environment={**describe_machine(), **environment},
        tags=(
            lossless,
            type(job.strategies.policy).__name__,
            str(job.config["dataset"]["_target_"]).rpartition(".")[2],
            *([] if device is None else [str(device)]),
        ),
        is_timed=lambda: not neighbours.count(),
    )


def _record_failure(job: Job, error: Exception, neighbours: Neighbours) -> None:
    """Leave a run folder that says what went wrong before decoding."""
    folder = RunFolderSink(overwrite=False)
    folder.open(_run_info(job, {}, neighbours))
    folder.close(None, status_of(error))


def _check_verdict(summary: Summary) -> None:
    lossless = summary["lossless"]
    if lossless["violations"]:
        raise LosslessViolationError(
            f"{lossless['violations']} of {lossless['checked']} texts are not what the "
            "target would have written (lossless: violation in prompts.jsonl)"
        )


def _skip(folder: Path) -> RunReport:
    """Show what a finished run found."""
    way_out = "the run is marked as done; use force=true to run it again"
    summary = read_json(folder / SUMMARY, way_out)
    try:
        table = render(summary)
    except MALFORMED as error:
        raise TreespecError(
            f"{folder / SUMMARY}: is no summary ({type(error).__name__}: {error}); "
            f"{way_out}"
        ) from error
    print(f"\n{table}\n")
    print(f"This run was finished before: {folder}")
    print("Nothing was decoded. Use force=true to run it again.", flush=True)
    return RunReport(folder, skipped=True, summary=summary)


class _Progress:
    """What the bar tells of the prompts so far."""

    def __init__(self, bar: tqdm[Any], is_timed: Callable[[], bool]) -> None:
        self._bar, self._is_timed = bar, is_timed
        self._baseline_s = self._speculative_s = 0.0

    def say(self, what: str) -> None:
        """Name what is being done."""
        self._bar.set_description(what)

    def show(self, outcome: PromptOutcome) -> None:
        """Count a prompt and show the speed-up of all so far."""
        self._baseline_s += outcome.baseline.decode_s
        self._speculative_s += outcome.speculative.decode_s
        if not self._is_timed():
            self._bar.set_postfix_str("not timed: other jobs run beside it")
        elif self._speculative_s > 0:
            ratio = self._baseline_s / self._speculative_s
            self._bar.set_postfix_str(f"speed-up so far {ratio:.2f}x")
        self._bar.update()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
