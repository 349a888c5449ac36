"""One part of a configuration built and checked: its class found, its arguments tested.

Errors name what the user wrote, by its key.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from treespec.drafters import AbstractDrafter
from treespec.errors import TreespecError, unknown_name
from treespec.job import (
    DRAFT,
    TARGET,
    Models,
)
from treespec.measures import AbstractQualityMeasure
from treespec.sinks.base import AbstractSink

Config = dict[str, Any]


T = TypeVar("T")


PARTS = ("drafter", "policy", "controller", "acceptance", "verifier")


_HYDRA = tuple(int(part) for part in version("hydra-core").split(".")[:2])


_PLUGINS = "TREESPEC_PLUGINS"


@dataclass(frozen=True, slots=True)
class Builder:
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
        if not wanted_models(config):
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
            self.build(section(config, name, "sink."), f"sink.{name}", AbstractSink)
            for name in config
            if config[name] is not None
        ]

    def measures(self, config: Config) -> list[AbstractQualityMeasure]:
        """Return the quality measures, in their order."""
        return [
            self.build(
                section(config, name, "quality."),
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
            if wanted_models(value) and None in models.values():
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


def section(config: Config, name: str, prefix: str = "") -> Config:
    """Return a group of keys.

    Raises:
        TreespecError: It is missing, or no group.
    """
    found = required(config, name, prefix)
    if not isinstance(found, dict):
        raise TreespecError(
            f"{prefix}{name} must be a group of keys, got {found!r}; choose an "
            f"option such as those that `treespec --help` lists"
        )
    return {str(key): value for key, value in found.items()}


def required(config: Config, name: str, prefix: str = "") -> Any:
    """Return the value of a key, or refuse a configuration without it."""
    if name not in config:
        raise TreespecError(f"{prefix}{name} is missing: give +{prefix}{name}=VALUE")
    return config[name]


def mapping(value: Any) -> Config:
    """Return a group of keys; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _one_line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def wanted_models(config: Config) -> frozenset[str]:
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
