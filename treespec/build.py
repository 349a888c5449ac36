"""From a composed configuration to the parts of a job, checked; loads no weights.

The strategies' own constructors check their values. Here it is checked that every part
is what its key stands for, so that an error names what the user wrote. ``parts``
builds a single one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from treespec.acceptance import AbstractAcceptanceRule
from treespec.baselines import AbstractBaseline
from treespec.controllers import AbstractController
from treespec.datasets.base import AbstractDataset
from treespec.errors import TreespecError, unknown_name
from treespec.job import (
    CALIBRATION_KEY,
    DRAFT,
    DRAFT_IF_ANY,
    TARGET,
    Job,
    Models,
    Settings,
    Strategies,
)
from treespec.models.source import ModelSource
from treespec.parts import (
    PARTS,
    Builder,
    Config,
    mapping,
    required,
    section,
    wanted_models,
)
from treespec.policies import AbstractDraftPolicy
from treespec.sampling import Sampling
from treespec.sinks.run_folder import RunFolderSink
from treespec.verifiers import AbstractVerifier

_BASES: Mapping[str, type] = {
    "policy": AbstractDraftPolicy,
    "controller": AbstractController,
    "acceptance": AbstractAcceptanceRule,
    "verifier": AbstractVerifier,
}
_GROUPS = ("pair", *PARTS, "sampling", "baseline", "dataset", "sink")
_SCALARS = (
    "seed",
    "max_new_tokens",
    "num_prompts",
    "stop",
    "max_concurrent",
    "warmup",
    "repeats",
    "trace",
    "output_root",
    "sweep_name",
    "force",
)
EXECUTE = "execute_code"
"""Key of the permission to run code that a model wrote."""
_KEYS = (*_GROUPS, *_SCALARS, "quality", EXECUTE, "wandb")
_OPTIONAL = {"path", "hub_id", "wheel", "wheel_sha256", "revision", "quantization"}


def build_job(
    config: DictConfig, trusted: Iterable[str] = (), *, may_execute: bool = False
) -> Job:
    """Return the job that a configuration describes.

    Args:
        config: The composed configuration.
        trusted: Import paths that may be built besides treespec's own and the packages
            in the environment variable ``TREESPEC_PLUGINS``; Hydra asks since 1.4.
        may_execute: Whether the user gave, with this very command, the permission to
            run code that a model wrote: one in a file is another one's.

    Raises:
        TreespecError: A value is missing, unknown or wrong; names its key.
    """
    plain = to_plain(config)
    _check_keys(plain, _KEYS, "")
    _check_permission(plain, may_execute)
    builder = Builder(tuple(trusted))
    settings = _settings(plain)
    target, draft = _sources(plain["pair"])
    others = ("sampling", "baseline", "dataset")
    part = {name: section(plain, name) for name in (*PARTS, *others)}
    part["drafter"] = _settled(part["drafter"], has_draft=draft is not None)
    dataset = builder.build(part["dataset"], "dataset", AbstractDataset)
    policy = builder.build(part["policy"], "policy", AbstractDraftPolicy)
    return Job(
        config=plain,
        settings=settings,
        target=target,
        draft=draft,
        allow_mismatch=plain["pair"].get("allow_mismatch", False),
        strategies=Strategies(
            drafter=builder.drafter(part["drafter"]),
            needs=wanted_models(part["drafter"]),
            policy=policy,
            controller=builder.build(
                part["controller"], "controller", AbstractController
            ),
            acceptance=builder.build(
                part["acceptance"], "acceptance", AbstractAcceptanceRule
            ),
            verifier=builder.build(part["verifier"], "verifier", AbstractVerifier),
        ),
        sampling=builder.build(part["sampling"], "sampling", Sampling),
        baseline=builder.build(part["baseline"], "baseline", AbstractBaseline),
        prompts=tuple(dataset.load(settings.num_prompts)),
        sinks=(RunFolderSink(settings.force), *builder.sinks(section(plain, "sink"))),
        measures=tuple(builder.measures(mapping(plain.get("quality")))),
    )


def build_parts(
    config: DictConfig, names: Iterable[str], models: Models, trusted: Iterable[str]
) -> dict[str, object]:
    """Return some of the parts that a configuration describes, and build no others.

    Args:
        config: The composed configuration.
        names: Which parts.
        models: What a drafter gets that asks for models of the pair.
        trusted: As in ``build_job``.

    Raises:
        TreespecError: A value is missing, unknown or wrong; names its key.
    """
    plain = to_plain(config)
    _check_keys(plain, _KEYS, "")
    builder = Builder(tuple(trusted))
    parts: dict[str, object] = {}
    for name in names:
        config_of = section(plain, name)
        if name == "drafter":
            part = builder.drafter(_settled(config_of, has_draft=DRAFT in models))
            parts[name] = part(models) if isinstance(part, partial) else part
        else:
            parts[name] = builder.build(config_of, name, _BASES[name])
    return parts


def to_plain(config: DictConfig) -> Config:
    """Return a configuration as dicts, lists and scalars, with absolute input paths.

    So a saved one means the same from every working directory.

    Raises:
        TreespecError: A mandatory value is missing, or an interpolation leads nowhere.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        raise TreespecError(f"{key}: {str(error).splitlines()[0]}") from error
    if missing:
        key = missing[0]
        raise TreespecError(f"{key} is missing: give {key}=VALUE")
    assert isinstance(plain, dict)
    owners = [plain.get("dataset"), *mapping(plain.get("pair")).values()]
    files = [(owner, "path") for owner in owners]
    for owner, name in (*files, (plain.get("policy"), CALIBRATION_KEY)):
        path = mapping(owner).get(name)
        if isinstance(path, str):
            owner[name] = str(Path(path).expanduser().absolute())
    return {str(key): value for key, value in plain.items()}


def _settled(value: Any, *, has_draft: bool) -> Any:
    """Return a drafter's configuration with the draft model asked for, or left out."""
    if value == DRAFT_IF_ANY:
        return DRAFT if has_draft else None
    if isinstance(value, dict):
        return {k: _settled(item, has_draft=has_draft) for k, item in value.items()}
    if isinstance(value, list):
        return [_settled(item, has_draft=has_draft) for item in value]
    return value


def _settings(config: Config) -> Settings:
    wandb = section(config, "wandb")
    _check_keys(wandb, ("mode", "project"), "wandb.")
    return Settings(**{name: required(config, name) for name in _SCALARS})


def _sources(pair: Any) -> tuple[ModelSource, ModelSource | None]:
    """Return the pair's models; a draft without any place to find it is none."""
    if not isinstance(pair, dict):
        raise TreespecError(f"pair must have target and draft, got {pair!r}")
    _check_keys(pair, ("target", "draft", "allow_mismatch"), "pair.")
    if not isinstance(pair.get("allow_mismatch", False), bool):
        raise TreespecError(
            f"pair.allow_mismatch must be true or false, got {pair['allow_mismatch']!r}"
        )
    target = _source(section(pair, "target", "pair."), TARGET)
    if pair.get("draft") is None:
        return target, None
    draft = _source(section(pair, "draft", "pair."), DRAFT)
    places = (draft.path, draft.hub_id, draft.wheel)
    return target, None if places == (None, None, None) else draft


def _source(config: Config, key: str) -> ModelSource:
    _check_keys(config, [field.name for field in fields(ModelSource)], f"{key}.")
    for name, value in config.items():
        optional = name in _OPTIONAL
        if name == "trust_remote_code":
            if not isinstance(value, bool):
                raise TreespecError(f"{key}.{name} must be true or false, got {value}")
        elif not (isinstance(value, str) or (optional and value is None)):
            raise TreespecError(f"{key}.{name} must be a text, got {value!r}")
    return ModelSource(**config)


def _check_permission(config: Config, may_execute: bool) -> None:
    """Refuse a permission that a file gives, and one that is neither true nor false."""
    for measure in (config, *mapping(config.get("quality")).values()):
        given = measure.get(EXECUTE) if isinstance(measure, Mapping) else None
        if not isinstance(given, bool | None):
            raise TreespecError(f"{EXECUTE} must be true or false, got {given!r}")
        if given and not may_execute:
            raise TreespecError(
                f"{EXECUTE}=true stands in a configuration file, but running code that "
                f"a model wrote is allowed by the command alone: type {EXECUTE}=true"
            )


def _check_keys(config: Config, known: Iterable[str], prefix: str) -> None:
    names = list(known)
    for key in config:
        if key not in names:
            raise unknown_name("key", f"{prefix}{key}", [f"{prefix}{n}" for n in names])
