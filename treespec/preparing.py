"""From a job to a decoder that is ready: checks, models, costs, the baseline.

What needs no weights is checked first, and no network is asked for what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treespec.baselines import ReadyBaseline
from treespec.conversation import first_turns
from treespec.datasets.base import Prompt
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import AbstractDrafter
from treespec.errors import TreespecError
from treespec.job import DRAFT, TARGET, Job
from treespec.loaded_models import FoundModel, LoadedModels
from treespec.measures import AbstractQualityMeasure
from treespec.models.base import AbstractLanguageModel
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.loading import inspect, locate
from treespec.models.source import check_source, resolve_device
from treespec.models.stock import load_stock
from treespec.models.vocabulary import check_pair
from treespec.neighbours import Neighbours, device_name
from treespec.pipes import say
from treespec.profile_cache import KeptProfile, about_pair, kept_profile
from treespec.tasks import Task


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


def prepare(job: Job, models: LoadedModels | None = None) -> Prepared:
    """Find the models, read the prompts with their tokenizer, and load the weights.

    Args:
        job: The job.
        models: As in ``runner.run``.

    Raises:
        TreespecError: A model is not there, or a prompt or the pair does not fit it.
    """
    found = _find_models(job)
    tasks = first_turns(job.prompts, found[0].info, TARGET)
    held = LoadedModels() if models is None else models
    environment, decoder = _load(job, found, held)
    return Prepared(tasks, environment, decoder)


def devices(job: Job) -> Iterator[str]:
    """Yield the names of the devices that a job works on, as ``beside`` takes them."""
    yield device_name(resolve_device(job.target, TARGET))
    if job.draft is not None and DRAFT in job.strategies.needs:
        yield device_name(resolve_device(job.draft, DRAFT))


def with_costs(job: Job, prepared: Prepared, neighbours: Neighbours) -> Prepared:
    """Tell the policy what forwards cost here, if it asks; measures them if need be.

    The costs are part of the run's environment, as decisions depend on them. Those that
    were timed beside other jobs are kept for nobody else.

    Raises:
        TreespecError: Too few timings are seconds.
    """
    policy = prepared.decoder.policy
    if not policy.wants_costs:
        return prepared
    costs = costs_of(job, prepared, neighbours).profile.costs
    return Prepared(
        tasks=prepared.tasks,
        environment={**prepared.environment, "costs": costs.to_json()},
        decoder=replace(prepared.decoder, policy=policy.with_costs(costs)),
    )


def costs_of(
    job: Job, prepared: Prepared, neighbours: Neighbours, *, force: bool = False
) -> KeptProfile:
    """Return what forwards of a job's pair cost here: kept, or measured now.

    Args:
        job: The job.
        prepared: Its models.
        neighbours: Who runs beside it: what was timed beside others is not kept.
        force: Whether to measure anew whatever is kept.

    Raises:
        TreespecError: Too few timings are seconds.
    """
    about = about_pair(prepared.environment["models"], job.config["drafter"])
    return kept_profile(
        prepared.decoder, about, force=force, is_alone=neighbours.is_alone, say=say
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
    _check_devices(job)
    _check_baseline(job)
    for quality in job.measures:
        _check_quality(quality, job.prompts)
    for sink in job.sinks:
        sink.check(job.folder)


def _check_devices(job: Job) -> None:
    """Refuse a draft on another device than the target: nodes are not carried over."""
    if job.draft is None or DRAFT not in job.strategies.needs:
        return
    target, draft = resolve_device(job.target, TARGET), resolve_device(job.draft, DRAFT)
    if (target.type, target.index or 0) != (draft.type, draft.index or 0):
        raise TreespecError(
            f"{DRAFT}.device: the draft would be on {draft}, the target on {target}; "
            f"give both the same device, such as {DRAFT}.device={target}"
        )


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
        say(f"loading the {key.removeprefix('pair.')} model for {job.baseline.name}")
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
        say(f"{word} the {name} model: {part.located.name}")
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
