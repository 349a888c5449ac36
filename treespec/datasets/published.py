"""Data sets that others publish: a file of the user's, or one fetched and kept.

Nothing of them travels with the package. Without a network one line says so, after
seconds, and names the way out: ``dataset.path=FILE``.
"""

from __future__ import annotations

import hashlib
import os
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.request import urlopen

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.files import Row, file_rows
from treespec.datasets.jsonl import prompts_of
from treespec.errors import FetchError, TreespecError
from treespec.models.store import cache_root, scratch_folder

DEADLINE_S = 30.0
"""Seconds after which a fetch is given up, whatever the network does."""
_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 26
_YES = ("1", "true", "yes", "on")


Adapted = Callable[[Row], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file at a fixed address.

    Attributes:
        name: What its publishers call the data.
        url: Its address.
        num_rows: How many rows it has: fewer are no whole file.
        sha256: Of the file, where it is known.
    """

    name: str
    url: str
    num_rows: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class AbstractPublishedDataset(AbstractDataset):
    """A published file whose rows become prompts.

    Attributes:
        path: Where the user has the file, or a part of it; ``None`` fetches it.
        file: The file.
    """

    path: str | None = None

    file: ClassVar[PublishedFile]

    def __post_init__(self) -> None:
        """Check the path."""
        check_path(self.path)

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        prompts = published_prompts(self.file, self.path, self.adapted)
        return choose(prompts, num_prompts)

    @abstractmethod
    def adapted(self, row: Row) -> dict[str, Any]:
        """Return the keys of ``JsonlDataset`` for one of the file's rows."""


def published_prompts(
    file: PublishedFile, path: str | None, adapted: Adapted
) -> list[Prompt]:
    """Return the prompts of a published file.

    Args:
        file: The file.
        path: Where the user has it, or a part of it; ``None``: fetch it, or find it
            fetched.
        adapted: From one of its rows to the keys of ``JsonlDataset``.

    Raises:
        TreespecError: It cannot be had, or a row is not what it should be.
    """
    rows = file_rows(str(fetched(file)) if path is None else path)
    return prompts_of([_adapted(row, file, adapted) for row in rows], path or file.name)


def check_path(path: object) -> None:
    """Refuse a path that is no text.

    Raises:
        TreespecError: Names the key and the value.
    """
    if not (path is None or isinstance(path, str)):
        raise TreespecError(
            f"dataset.path must be the path of a file, or null to fetch it, got "
            f"{path!r}"
        )


def _adapted(row: Row, file: PublishedFile, adapted: Adapted) -> Row:
    try:
        return Row(row.number, row.where, adapted(row))
    except (KeyError, TypeError, AttributeError) as error:
        raise TreespecError(
            f"{row.where}: is no row of {file.name} ({type(error).__name__}: {error}); "
            "for prompts of your own use dataset=jsonl"
        ) from error


def fetched(file: PublishedFile) -> Path:
    """Return a published file in the cache; the first call fetches it.

    Raises:
        FetchError: There is no network, or it gave another file, or took too long.
    """
    digest = hashlib.sha256(file.url.encode()).hexdigest()[:16]
    place = cache_root() / "datasets" / digest / Path(file.url).name
    if place.is_file():
        return place
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _YES:
        raise _out_of_reach(file, "HF_HUB_OFFLINE is set")
    print(f"fetching {file.name} from {file.url}", file=sys.stderr, flush=True)
    content = _download(file)
    seen = hashlib.sha256(content).hexdigest()
    if file.sha256 not in (None, seen):
        raise FetchError(
            f"dataset: {file.url} has sha256 {seen}, expected {file.sha256}; it was "
            "not kept: get the file elsewhere and give dataset.path=FILE"
        )
    try:
        with scratch_folder(place) as scratch:
            (scratch / place.name).write_bytes(content)
            _check_whole(file, scratch / place.name)
            os.replace(scratch / place.name, place)
    except OSError as error:
        raise FetchError(
            f"dataset: could not write {file.name} to {cache_root()} "
            f"({error.strerror or error}); free some space there, or set "
            "TREESPEC_CACHE=FOLDER to another place"
        ) from error
    return place


def _check_whole(file: PublishedFile, place: Path) -> None:
    """Refuse what a connection that broke, or a portal's page, has left of a file."""
    try:
        num_rows = len(file_rows(str(place)))
    except TreespecError as error:
        raise FetchError(
            f"dataset: {file.url} gave something else than {file.name} ({error}); it "
            "was not kept: get the file elsewhere and give dataset.path=FILE"
        ) from error
    if num_rows != file.num_rows:
        raise FetchError(
            f"dataset: {file.name} has {file.num_rows} rows, but {file.url} gave "
            f"{num_rows}; it was not kept: get it whole and give dataset.path=FILE"
        )


def _download(file: PublishedFile) -> bytes:
    """Return a file's bytes; a look-up of names that hangs is left behind."""
    found: list[bytes] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            with urlopen(file.url, timeout=_TIMEOUT_S) as response:
                found.append(response.read(_MOST_BYTES))
        except Exception as error:  # whatever a network makes of it
            failed.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if found:
        return found[0]
    if failed:
        reason = " ".join(str(failed[0]).split()) or type(failed[0]).__name__
        raise _out_of_reach(file, reason) from failed[0]
    raise _out_of_reach(file, f"no answer within {DEADLINE_S:.0f} s")


def _out_of_reach(file: PublishedFile, reason: str) -> FetchError:
    return FetchError(
        f"dataset: {file.name} is not in the cache and cannot be fetched ({reason}); "
        f"get {file.url} where there is a network, and give dataset.path=FILE"
    )
