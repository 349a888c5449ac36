"""What must not change: an object's state, and everybody's randomness."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, ModuleType

import torch
from torch import Tensor, nn

from treespec.models.base import AbstractLanguageModel
from treespec.testing.failure import ConformanceError
from treespec.testing.settings import keeps_settings


def snapshot(value: object) -> object:
    """Return a comparable copy of everything that an object holds.

    Goes into dataclasses, slots, dictionaries, containers, tensors and generators.
    Models, classes, modules and functions count as themselves.
    """
    return _snapshot(value, ())


def _snapshot(value: object, above: tuple[int, ...]) -> object:
    if id(value) in above:
        return "cycle"
    above = (*above, id(value))
    if isinstance(value, nn.Module | AbstractLanguageModel | type | ModuleType):
        return id(value)
    if isinstance(value, Tensor | torch.Generator | random.Random):
        return _state(value)
    if isinstance(value, dict | MappingProxyType):
        return [_snapshot(pair, above) for pair in value.items()]
    if isinstance(value, list | tuple):
        return [_snapshot(item, above) for item in value]
    attributes = _attributes(value)
    return (type(value), _snapshot(attributes, above)) if attributes else repr(value)


def _state(value: Tensor | torch.Generator | random.Random) -> object:
    match value:
        case Tensor():
            return (value.dtype, tuple(value.shape), value.tolist())
        case torch.Generator():
            return bytes(value.get_state().tolist())
        case random.Random():
            return value.getstate()


def _attributes(value: object) -> dict[str, object]:
    """Return what is in an object's ``__dict__``, slots and fields."""
    names = [
        name
        for kind in type(value).__mro__
        for name in _slots(kind)
        if not name.startswith("__")
    ]
    if dataclasses.is_dataclass(value):
        names += [field.name for field in dataclasses.fields(value)]
    attributes = dict(getattr(value, "__dict__", {}))
    for name in names:
        if hasattr(value, name):
            attributes[name] = getattr(value, name)
    return attributes


def _slots(kind: type) -> tuple[str, ...]:
    slots: str | tuple[str, ...] | Mapping[str, str] = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def global_randomness() -> Mapping[str, object]:
    """Return the state of every global generator, by its name."""
    states: dict[str, object] = {
        "random": random.getstate(),
        "torch": bytes(torch.get_rng_state().tolist()),
    }
    if "numpy" in sys.modules:
        states["numpy.random"] = repr(sys.modules["numpy"].random.get_state())
    return states


@contextmanager
def leaves_alone(name: str, plug_in: object, draws: str) -> Iterator[None]:
    """Check that a block changes neither a plug-in's object nor anything global.

    Args:
        name: The plug-in's name, for the message.
        plug_in: Its object.
        draws: What a plug-in does that uses global randomness, for the message.

    Raises:
        ConformanceError: It did; the message says what. Global randomness is told
            instead of what the block raises: it may well be the cause.
    """
    state, before = snapshot(plug_in), global_randomness()
    try:
        with keeps_settings(name):
            yield
    except ConformanceError as error:
        _check_randomness(name, before, draws, error)
        raise
    _check_randomness(name, before, draws)
    if snapshot(plug_in) != state:
        raise ConformanceError(
            f"{name} changes its own object when it is used; it serves many requests "
            f"at once, so keep state elsewhere\nbefore: {state}\nafter:  "
            f"{snapshot(plug_in)}"
        )


def _check_randomness(
    name: str,
    before: Mapping[str, object],
    draws: str,
    cause: ConformanceError | None = None,
) -> None:
    now = global_randomness()
    moved = [key for key, old in before.items() if now[key] != old]
    if moved:
        raise ConformanceError(
            f"{name} {draws}: it moves the global generator of {moved[0]}"
        ) from cause
