"""Models that stay in memory from one job of a process to the next.

What stays is weights alone: everything that a decode changes (pools of slots, adapters,
drafters) is made anew for each job. A module that a job left otherwise than it found it
is read again.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treespec.environment import describe_model
from treespec.models.loading import ModelInfo, load_module
from treespec.models.source import LocatedModel


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One model that was looked at, but not loaded.

    Attributes:
        key: Its place in the configuration (``pair.target``).
        located: Where it is, and how it is to be held.
        info: What is known without its weights.
        exact: Whether its answers must not depend on their company (the target's).
    """

    key: str
    located: LocatedModel
    info: ModelInfo
    exact: bool


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model's weights in memory.

    Attributes:
        module: The module; read it, change nothing of it.
        described: What it is, for the record of a run.
    """

    module: Any
    described: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Identity:
    """What makes two loads of a model equal.

    Attributes:
        located: Source (with dtype, device, attention, quantization) and place.
        exact: As in ``FoundModel``.
        files: Name, bytes and time of each file of a local folder.
    """

    located: LocatedModel
    exact: bool
    files: tuple[tuple[str, int, int], ...]


class LoadedModels:
    """Models in memory: those of the last job, and no others."""

    def __init__(self) -> None:
        self._held: dict[_Identity, HeldModel] = {}
        self._states: dict[_Identity, list[int]] = {}

    def __len__(self) -> int:
        """Return how many models are in memory."""
        return len(self._held)

    def hold(self, found: Sequence[FoundModel]) -> list[HeldModel]:
        """Return each model's weights, read now unless the last job left them here.

        What is not asked for is dropped first, so that no two jobs' models have to fit
        into memory together.

        Args:
            found: All models of one job.

        Raises:
            TreespecError: The weights of one cannot be read.
        """
        wanted = [_identity(part) for part in found]
        stale = [i for i in self._held if i not in wanted or self._is_changed(i)]
        for identity in stale:
            self._drop(identity)
        if any(identity not in self._held for identity in wanted):
            free_memory()
        for identity, part in zip(wanted, found, strict=True):
            if identity not in self._held:
                module = load_module(part.located, part.key, exact=part.exact)
                described = describe_model(part.located, part.info, module)
                self._held[identity] = HeldModel(module, described)
                self._states[identity] = _state_of(module)
        return [self._held[identity] for identity in wanted]

    def holds(self, part: FoundModel) -> bool:
        """Return whether a model is in memory as it was read."""
        identity = _identity(part)
        return identity in self._held and not self._is_changed(identity)

    def clear(self) -> None:
        """Drop all models."""
        for identity in list(self._held):
            self._drop(identity)
        free_memory()

    def _drop(self, identity: _Identity) -> None:
        del self._held[identity], self._states[identity]

    def _is_changed(self, identity: _Identity) -> bool:
        return _state_of(self._held[identity].module) != self._states[identity]


def free_memory() -> None:
    """Give back what nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _identity(part: FoundModel) -> _Identity:
    folder = Path(part.located.name)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    stats = [(file.name, file.stat()) for file in files if file.exists()]
    return _Identity(
        located=part.located,
        exact=part.exact,
        files=tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats),
    )


def _state_of(module: torch.nn.Module) -> list[int]:
    """Return numbers that change when a weight, a hook or the mode is changed.

    Reads no weight: PyTorch counts the changes of every tensor.
    """
    tensors = [*module.parameters(), *module.buffers()]
    parts = list(module.modules())
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in parts]
    return [
        *(number for t in tensors for number in (id(t), _num_changes(t))),
        *hooks,
        *(int(part.training) for part in parts),
    ]


def _num_changes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
