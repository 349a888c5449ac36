"""From a composed configuration to the parts of a job, checked; loads no weights.

The strategies' own constructors check their values. Here it is checked that every part
is what its key stands for, so that an error names what the user wrote. Besides
``cli.py`` the only file that knows Hydra and OmegaConf.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from treespec.acceptance import AbstractAcceptanceRule
from treespec.baselines import AbstractBaseline
from treespec.controllers import AbstractController
from treespec.datasets.base import AbstractDataset
from treespec.drafters import AbstractDrafter
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
from treespec.measures import AbstractQualityMeasure
from treespec.models.source import ModelSource
from treespec.policies import AbstractDraftPolicy
from treespec.sampling import Sampling
from treespec.sinks.base import AbstractSink
from treespec.sinks.run_folder import RunFolderSink
from treespec.verifiers import AbstractVerifier

Config = dict[str, Any]
T = TypeVar("T")

PARTS = ("drafter", "policy", "controller", "acceptance", "verifier")
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
_HYDRA = tuple(int(part) for part in version("hydra-core").split(".")[:2])
_PLUGINS = "TREESPEC_PLUGINS"


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
    builder = _Builder(tuple(trusted))
    settings = _settings(plain)
    target, draft = _sources(plain["pair"])
    others = ("sampling", "baseline", "dataset")
    part = {name: _section(plain, name) for name in (*PARTS, *others)}
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
            needs=_wanted_models(part["drafter"]),
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
        sinks=(RunFolderSink(settings.force), *builder.sinks(_section(plain, "sink"))),
        measures=tuple(builder.measures(_mapping(plain.get("quality")))),
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
    builder = _Builder(tuple(trusted))
    parts: dict[str, object] = {}
    for name in names:
        section = _section(plain, name)
        if name == "drafter":
            part = builder.drafter(_settled(section, has_draft=DRAFT in models))
            parts[name] = part(models) if isinstance(part, partial) else part
        else:
            parts[name] = builder.build(section, name, _BASES[name])
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
    owners = [plain.get("dataset"), *_mapping(plain.get("pair")).values()]
    files = [(owner, "path") for owner in owners]
    for owner, name in (*files, (plain.get("policy"), CALIBRATION_KEY)):
        path = _mapping(owner).get(name)
        if isinstance(path, str):
            owner[name] = str(Path(path).expanduser().absolute())
    return {str(key): value for key, value in plain.items()}


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds parts from their configuration.

    Attributes:
        trusted: Import paths that may be built besides the known packages.
    """

    trusted: tuple[str, ...]

    def build(self, config: Config, key: str, base: type[T]) -> T:
        """Return the part of one key."""
        part = self._call(config, key, {})
        if not isinstance(part, base):
            raise TreespecError(
                f"{key}._target_: {config['_target_']} makes a {type(part).__name__}, "
                f"but {key} must be of type {base.__name__}; subclass it, see "
                f"{base.__module__}"
            )
        return part

    def drafter(self, config: Config) -> AbstractDrafter | partial[AbstractDrafter]:
        """Return the drafter, or what makes it from models that are loaded later."""
        if not _wanted_models(config):
            return self.build(config, "drafter", AbstractDrafter)
        self._bound(config, "drafter", dict.fromkeys((TARGET, DRAFT)))
        return partial(self._drafter_with, config)

    def _drafter_with(self, config: Config, models: Models) -> AbstractDrafter:
        part = self._call(config, "drafter", models)
        if not isinstance(part, AbstractDrafter):
            raise TreespecError(
                f"drafter._target_: {config['_target_']} makes a "
                f"{type(part).__name__}, but drafter must be of type AbstractDrafter"
            )
        return part

    def sinks(self, config: Config) -> list[AbstractSink]:
        """Return the sinks besides the run folder."""
        return [
            self.build(_section(config, name, "sink."), f"sink.{name}", AbstractSink)
            for name in config
            if config[name] is not None
        ]

    def measures(self, config: Config) -> list[AbstractQualityMeasure]:
        """Return the quality measures, in their order."""
        return [
            self.build(
                _section(config, name, "quality."),
                f"quality.{name}",
                AbstractQualityMeasure,
            )
            for name in config
        ]

    def _call(self, config: Config, key: str, models: Mapping[str, Any]) -> object:
        call = self._bound(config, key, models)
        try:
            return call()
        except TreespecError as error:
            message = str(error)
            if f"{key}." not in message:
                message = _at(key, message)
            if key not in message:
                is_own = message.partition(" ")[0] in config
                message = f"{key}.{message}" if is_own else f"{key}: {message}"
            raise TreespecError(message) from error
        except Exception as error:  # whatever a constructor makes of wrong values
            raise TreespecError(
                f"{key}: {config['_target_']} refuses its values "
                f"({type(error).__name__}: {_one_line(error)}); mend the keys of {key}"
            ) from error

    def _bound(
        self, config: Config, key: str, models: Mapping[str, Any]
    ) -> partial[object]:
        """Return the constructor with its arguments, once they are known to fit."""
        constructor = self._find(config, key)
        arguments = {
            name: self._argument(value, f"{key}.{name}", models)
            for name, value in config.items()
            if name != "_target_"
        }
        _check_arguments(constructor, arguments, key, config["_target_"])
        return partial(constructor, **arguments)

    def _argument(self, value: Any, key: str, models: Mapping[str, Any]) -> Any:
        """Return a value, with nested parts built and named models handed over."""
        if isinstance(value, str) and value in models:
            return models[value]
        if isinstance(value, list):
            return [
                self._argument(item, f"{key}[{index}]", models)
                for index, item in enumerate(value)
            ]
        if isinstance(value, dict) and "_target_" in value:
            if _wanted_models(value) and None in models.values():
                return self._bound(value, key, models)  # no model is loaded yet
            return self._call(value, key, models)
        return value

    def _find(self, config: Config, key: str) -> Any:
        """Return what ``_target_`` names; only here is ``instantiate`` called."""
        target = config.get("_target_")
        if not isinstance(target, str):
            raise TreespecError(
                f"{key}._target_ must be the import path of a class, got {target!r}"
            )
        allowed: dict[str, Any] = {}
        if _HYDRA >= (1, 4):
            allowed["_execution_whitelist_"] = self._whitelist()
        try:
            found = instantiate({"_target_": target, "_partial_": True}, **allowed)
        except InstantiationException as error:
            raise _target_error(key, target, error) from error
        return found.func

    def _whitelist(self) -> list[str]:
        plugins = os.environ.get(_PLUGINS, "").replace(",", " ").split()
        return ["treespec.*", *(f"{name}.*" for name in plugins), *self.trusted]


def _target_error(key: str, target: str, error: Exception) -> TreespecError:
    """Return the error for an import path that Hydra could not or would not use."""
    if "whitelist" in str(error):
        package = target.partition(".")[0]
        return TreespecError(
            f"{key}._target_: {target} is outside of treespec; trust its package with "
            f"{_PLUGINS}={package} in the environment"
        )
    cause = error.__cause__
    if not isinstance(cause, ImportError):
        return TreespecError(f"{key}._target_: {_one_line(error)}")
    module = target.rpartition(".")[0] or target
    reason = next(
        (line for line in str(cause).splitlines()[1:] if "Error(" in line), str(cause)
    )
    return TreespecError(
        f"{key}._target_: cannot import {target} ({_one_line(reason)}); write it as "
        f"module.Class, and run where `python -c 'import {module}'` works"
    )


def _at(key: str, message: str) -> str:
    """Return a part's message with its keys as they stand in the configuration.

    What the second of several drafters calls ``drafter.model`` is
    ``drafter.drafters[1].model`` there.
    """
    group, *inner = re.split(r"(?=[.[])", key)
    if not inner:
        return message
    own = rf"(?<![\w.]){re.escape(group)}\.(?=\w)"
    return re.sub(own, lambda _: f"{key}.", message)


def _check_arguments(
    constructor: Any, arguments: Config, key: str, target: str
) -> None:
    """Refuse keys that a constructor does not take, and name those it lacks."""
    try:
        signature = inspect.signature(constructor)
    except (TypeError, ValueError):  # builtins have none: the call itself will tell
        return
    known = signature.parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in known.values())
    names = [n for n, p in known.items() if p.kind is not p.POSITIONAL_ONLY]
    for name in arguments:
        if name not in known and not takes_any:
            own = "" if target.startswith("treespec.") else _choose_custom(key)
            if not names:
                raise TreespecError(f"{key}.{name}: {target} takes no keys{own}")
            error = unknown_name("key", f"{key}.{name}", [f"{key}.{n}" for n in names])
            raise TreespecError(f"{error}{own}")
    for name, parameter in known.items():
        required = parameter.default is parameter.empty
        is_named = parameter.kind in {
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        }
        if required and is_named and name not in arguments:
            raise TreespecError(
                f"{key}.{name} is missing: {target} needs it; give +{key}.{name}=VALUE"
            )


def _choose_custom(key: str) -> str:
    """Return what to do if the keys of the group's default are in the way."""
    return f"; for a class of yours choose {key}=custom first" if key in PARTS else ""


def _settled(value: Any, *, has_draft: bool) -> Any:
    """Return a drafter's configuration with the draft model asked for, or left out."""
    if value == DRAFT_IF_ANY:
        return DRAFT if has_draft else None
    if isinstance(value, dict):
        return {k: _settled(item, has_draft=has_draft) for k, item in value.items()}
    if isinstance(value, list):
        return [_settled(item, has_draft=has_draft) for item in value]
    return value


def _wanted_models(config: Config) -> frozenset[str]:
    """Return which of the pair's models a drafter's configuration names."""
    names: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, str) and value in (TARGET, DRAFT):
            names.add(value)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(config)
    return frozenset(names)


def _settings(config: Config) -> Settings:
    wandb = _section(config, "wandb")
    _check_keys(wandb, ("mode", "project"), "wandb.")
    return Settings(**{name: _required(config, name) for name in _SCALARS})


def _sources(pair: Any) -> tuple[ModelSource, ModelSource | None]:
    """Return the pair's models; a draft without any place to find it is none."""
    if not isinstance(pair, dict):
        raise TreespecError(f"pair must have target and draft, got {pair!r}")
    _check_keys(pair, ("target", "draft", "allow_mismatch"), "pair.")
    if not isinstance(pair.get("allow_mismatch", False), bool):
        raise TreespecError(
            f"pair.allow_mismatch must be true or false, got {pair['allow_mismatch']!r}"
        )
    target = _source(_section(pair, "target", "pair."), TARGET)
    if pair.get("draft") is None:
        return target, None
    draft = _source(_section(pair, "draft", "pair."), DRAFT)
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
    for measure in (config, *_mapping(config.get("quality")).values()):
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


def _section(config: Config, name: str, prefix: str = "") -> Config:
    section = _required(config, name, prefix)
    if not isinstance(section, dict):
        raise TreespecError(
            f"{prefix}{name} must be a group of keys, got {section!r}; choose an "
            f"option such as those that `treespec --help` lists"
        )
    return {str(key): value for key, value in section.items()}


def _required(config: Config, name: str, prefix: str = "") -> Any:
    if name not in config:
        raise TreespecError(f"{prefix}{name} is missing: give +{prefix}{name}=VALUE")
    return config[name]


def _mapping(value: Any) -> Config:
    return value if isinstance(value, dict) else {}


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
