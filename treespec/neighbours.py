"""Which other jobs ran beside a job on the same device: its times are then no times.

Every job that works keeps a locked file in the cache folder, one folder per machine. A
job that begins leaves its mark in the file of everyone that it finds there, so that
nobody has to look again and again, and nobody is missed. The lock ends with its
process; a file without one is of a job that was killed.
"""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from treespec.models.store import cache_root

_ENDING = ".job"


class Neighbours:
    """The other jobs that one job has had beside it so far."""

    def __init__(self, path: Path | None, known: frozenset[str]) -> None:
        self._path, self._known = path, known

    def count(self) -> int | None:
        """Return how many there have been; ``None`` if that cannot be known."""
        if self._path is None:
            return None
        try:
            _, *marks = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return None
        return len(self._known | set(marks))

    def is_alone(self) -> bool:
        """Return whether nobody was seen so far."""
        return not self.count()


@contextmanager
def beside(devices: Iterable[str]) -> Iterator[Neighbours]:
    """Be there for other jobs on the same devices, and learn of them.

    Where the cache folder cannot be written, nothing can be known.

    Args:
        devices: Names that are the same for every job of the machine (``device_name``).
    """
    folder = cache_root() / "jobs" / (platform.node() or "machine")
    names = set(devices)
    try:
        path, file = _enter(folder, sorted(names))
    except OSError:
        yield Neighbours(None, frozenset())
        return
    try:
        yield Neighbours(path, _greet(path, names))
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def device_name(device: torch.device) -> str:
    """Return a device's name, which does not depend on what a process may see."""
    if device.type != "cuda":
        return device.type
    index = device.index or 0
    return f"cuda {torch.cuda.get_device_properties(index).uuid}"


def _enter(folder: Path, devices: list[str]) -> tuple[Path, int]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{_ENDING}"
    hidden = path.with_suffix(".new")  # until it is locked it would look abandoned
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, (",".join(devices) + "\n").encode())
        os.replace(hidden, path)
    except OSError:
        os.close(file)
        raise
    return path, file


def _greet(own: Path, devices: set[str]) -> frozenset[str]:
    """Leave our mark with everyone at work on our devices; return their names."""
    found = set()
    for path in own.parent.glob(f"*{_ENDING}"):
        if path != own:
            with suppress(OSError):  # it ended between two looks
                if _is_at_work(path, devices, own.name):
                    found.add(path.name)
    return frozenset(found)


def _is_at_work(path: Path, devices: set[str], mark: str) -> bool:
    file = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        first = os.pread(file, 4096, 0).decode(errors="replace").split("\n")[0]
        if devices.isdisjoint(first.split(",")):
            return False
        os.write(file, f"{mark}\n".encode())
        return True
    else:
        path.unlink()
        return False
    finally:
        os.close(file)
