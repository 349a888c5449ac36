"""The folder in which fetched and unpacked models are kept, and what is written to it.

Nothing in it is ever half-written: files and folders are made beside their place and
moved in one step, so that several processes may fill it at once.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from treespec.errors import FetchError

_BLOCK_BYTES = 1 << 20


def cache_root() -> Path:
    """Return the cache folder: ``TREESPEC_CACHE``, else the user's cache folder."""
    if chosen := os.environ.get("TREESPEC_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")
    else:
        base = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    return Path(base) / "treespec"


@contextmanager
def writing(key: str) -> Iterator[None]:
    """Turn a failure to write into a ``FetchError`` that says where else to write."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise FetchError(
            f"{key}: could not write the model to {cache_root()} ({reason}); "
            "free some space there, or set TREESPEC_CACHE=FOLDER to another place"
        ) from error


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Give a folder in which to prepare ``beside``, on the same disk; it goes away."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{beside.name}-", dir=beside.parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def move_folder(ready: Path, place: Path) -> None:
    """Move a finished folder to its place, unless another process was first."""
    try:
        os.replace(ready, place)
    except OSError:
        if not place.is_dir():
            raise


def sha256_of(path: Path) -> str:
    """Return a file's sha256, remembered until its size or time changes."""
    stat = path.stat()
    identity = f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}"
    note = cache_root() / "sha256" / hashlib.sha256(identity.encode()).hexdigest()
    if note.is_file():
        return note.read_text()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    # The note only saves time: a cache that cannot be written is no failure here.
    with suppress(OSError), scratch_folder(note) as scratch:
        (scratch / "note").write_text(digest.hexdigest())
        os.replace(scratch / "note", note)
    return digest.hexdigest()
