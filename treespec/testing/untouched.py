"""What a strategy must leave alone: its own object, and everybody's randomness."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from treespec.testing.failure import ConformanceError

_CONTAINERS = (list, dict, set, frozenset, tuple, deque)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), *_CONTAINERS)

Look = dict[str, tuple[object, object]]
"""Name of an attribute -> the value itself, and what it looks like."""


@contextmanager
def untouched(part: object, key: str) -> Iterator[None]:
    """Refuse a part that changes, or draws from a global generator, inside of this.

    Its attributes and those of its class are looked at, and what plain containers
    among them hold. Models and other objects of its own are known by identity only.

    Args:
        part: The strategy object.
        key: What kind of part it is, for the message.

    Raises:
        ConformanceError: Something changed.
    """
    name = type(part).__name__
    before, randomness = _look(part), _global_randomness()
    yield
    for generator, state in _global_randomness().items():
        if state != randomness[generator]:
            raise ConformanceError(
                f"{key} {name} draws from the global generator of {generator}; take "
                "randomness from the request's own AbstractChance, or from a seeded "
                "generator of its own"
            )
    after = _look(part)
    for attribute in sorted(before.keys() | after.keys()):
        if not _is_same(before.get(attribute), after.get(attribute)):
            raise ConformanceError(
                f"{key} {name} keeps state on the object: its attribute {attribute} "
                "changed while it was used, so that one request can leak into another; "
                "keep hyper-parameters there, and the rest in the session or the state "
                "that it returns"
            )


def _look(part: object) -> Look:
    found: Look = {}
    for cls in type(part).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, _PLAIN) and not name.startswith("__"):
                found[name] = (value, repr(value))
        for name in getattr(cls, "__slots__", ()):
            if hasattr(part, name):
                value = getattr(part, name)
                found[name] = (value, _appearance(value))
    for name, value in getattr(part, "__dict__", {}).items():
        found[name] = (value, _appearance(value))
    return found


def _appearance(value: object) -> object:
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    return repr(value) if isinstance(value, _PLAIN) else None


def _is_same(
    before: tuple[object, object] | None, after: tuple[object, object] | None
) -> bool:
    if before is None or after is None:
        return before is after
    same_object = before[0] is after[0] or isinstance(before[0], _PLAIN)
    return same_object and before[1] == after[1]


def _global_randomness() -> dict[str, object]:
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": repr(np.random.get_state(legacy=False)),
        "random": random.getstate(),
    }
