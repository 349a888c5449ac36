"""What torch keeps for the whole process, and no plug-in may change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from treespec.testing.failure import ConformanceError

SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = (
    MappingProxyType(
        {
            "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
            "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
            "number of threads": (torch.get_num_threads, torch.set_num_threads),
        }
    )
)
"""Name -> how a setting is read, and how it is set."""


@contextmanager
def keeps_settings(name: str) -> Iterator[None]:
    """Restore torch's settings after a block, and check that it has kept them.

    Args:
        name: The plug-in's name, for the message.

    Raises:
        ConformanceError: It changed one.
    """
    before = {setting: read() for setting, (read, _) in SETTINGS.items()}
    changed: dict[str, object] = {}
    try:
        yield
    finally:
        for setting, (read, write) in SETTINGS.items():
            if read() != before[setting]:
                changed[setting] = read()
                write(before[setting])
    for setting, value in changed.items():
        raise ConformanceError(
            f"{name} changes torch's {setting} from {before[setting]} to {value}, "
            "which everybody in the process shares; leave it as it is"
        )
