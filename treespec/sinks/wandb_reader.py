"""Reads an offline W&B run back, without W&B's services and without a network.

Its log holds the headline numbers: configuration, a row per prompt, the summary. Steps
and nodes are in the run's files, of which it holds names, places and checksums.

A ``.wandb`` file is a log of LevelDB's format whose records are W&B's own messages.
"""

from __future__ import annotations

import hashlib
import json
import struct
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError
from treespec.sinks.wandb import ARTIFACT

_MAGIC = b":W&B"
_FILE_HEADER, _CHUNK_HEADER, _BLOCK = 7, struct.Struct("<IHB"), 32768
_PADDING, _FULL, _FIRST, _, _LAST = range(5)
"""Kinds of chunks: a record is one full chunk, or a first, middle ones and a last."""


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """What W&B was told of one run.

    Attributes:
        run_key: Its id.
        sweep_name: Its group.
        config: The resolved configuration, and what ``WandbSink`` adds to it.
        prompts: The numbers of each prompt, in order, named ``prompt/...``.
        summary: The summary, keys joined by dots.
        exit_code: 0 if it ended well; ``None`` if it did not end.
        run_folder: Where the run's files lie; ``None`` if they are not there any more
            as they were handed over.
    """

    run_key: str
    sweep_name: str | None
    config: dict[str, Any]
    prompts: tuple[dict[str, Any], ...]
    summary: dict[str, Any]
    exit_code: int | None
    run_folder: Path | None


def read_offline_run(folder: Path) -> OfflineRun:
    """Return what an offline run's folder (``offline-run-...``) holds.

    Raises:
        TreespecError: It cannot be read, or holds no run.
    """
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415 (costs a second)

    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    prompts: list[dict[str, Any]] = []
    run, exit_code, run_folder = None, None, None
    for content in _records(_log(folder)):
        record = wandb_internal_pb2.Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config.update(_items(record.run.config.update))
        elif kind == "config":
            config.update(_items(record.config.update))
        elif kind == "history":
            prompts.append(_items(record.history.item))
        elif kind == "summary":
            summary.update(_items(record.summary.update))
        elif kind == "exit":
            exit_code = record.exit.exit_code
        elif kind == "artifact" and record.artifact.type == ARTIFACT:
            run_folder = _run_folder(folder, record.artifact.manifest.contents)
    if run is None:
        raise TreespecError(f"{folder}: holds no W&B run; {_way_out(folder)}")
    return OfflineRun(
        run_key=run.run_id,
        sweep_name=run.run_group or None,
        config=config,
        prompts=tuple(row for row in prompts if "prompt_idx" in row),
        summary=summary,
        exit_code=exit_code,
        run_folder=run_folder,
    )


def _run_folder(folder: Path, files: Iterable[Any]) -> Path | None:
    """Return the folder in which all files are those that were handed to W&B.

    They lie where they lay then, or, if all was moved, around the offline run.
    """
    listed = list(files)
    places = {Path(file.local_path).parent for file in listed}
    for place in (*places, folder.absolute().parents[1]):
        if all(_digest(place / file.path) == file.digest for file in listed):
            return place
    return None


def _digest(path: Path) -> str | None:
    """Return a file's checksum as W&B writes it; ``None`` if it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()


def _items(items: Iterable[Any]) -> dict[str, Any]:
    """Return a message's keys and values; a nested key is joined by dots."""
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json)
        for item in items
    }


def _log(folder: Path) -> bytes:
    paths = sorted(folder.glob("*.wandb"))
    if not paths:
        raise TreespecError(f"{folder}: has no .wandb file; {_way_out(folder)}")
    try:
        content = paths[0].read_bytes()
    except OSError as error:
        raise TreespecError(
            f"{paths[0]}: cannot be read: {error.strerror}; {_way_out(folder)}"
        ) from error
    if content[: len(_MAGIC)] != _MAGIC:
        raise TreespecError(f"{paths[0]}: no log of W&B; {_way_out(folder)}")
    return content


def _records(log: bytes) -> Iterator[bytes]:
    """Yield the whole records of a log; what a kill cut at its end is left out."""
    at, parts = _FILE_HEADER, [b""]
    while at + _CHUNK_HEADER.size <= len(log):
        room = _BLOCK - at % _BLOCK
        if room < _CHUNK_HEADER.size:  # too little left of the block for a chunk
            at += room
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(log, at)
        at += _CHUNK_HEADER.size
        chunk, at = log[at : at + length], at + length
        if len(chunk) < length or kind == _PADDING:
            return
        parts = [chunk] if kind in (_FULL, _FIRST) else [*parts, chunk]
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def _way_out(folder: Path) -> str:
    return f"load the run's own folder, {folder.absolute().parents[1]}"
