"""Text, JSON and YAML files: read with words for what is wrong, written whole.

Every reader of a file that a user may have touched goes through here, so that a torn
file is told in the same words wherever it is met.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from treespec.errors import DiskError, NumericalError, TreespecError

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading a file raises that is JSON and not what it should be."""
_LOCKLESS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# The C parser is ten times as fast: a sweep has hundreds of configurations.
_YAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(path: Path, way_out: str = "") -> str:
    """Return the text of a file.

    Args:
        path: The file.
        way_out: What to do if it cannot be read, for the message.

    Raises:
        TreespecError: There is no such file, or it holds no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise _error(path, f"cannot be read: {reason}", way_out) from error


def read_json(path: Path, way_out: str = "") -> dict[str, Any]:
    """Return the object in a JSON file; arguments as in ``read_text``.

    Raises:
        TreespecError: There is no file, or no object in it.
    """
    text = read_text(path, way_out)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _error(path, f"not JSON: {error}", way_out) from error
    if not isinstance(content, dict):
        raise _error(path, "must hold one JSON object", way_out)
    return content


def read_yaml(path: Path, way_out: str = "") -> dict[str, Any]:
    """Return the mapping in a YAML file; arguments as in ``read_text``.

    Raises:
        TreespecError: There is no file, or no mapping in it.
    """
    text = read_text(path, way_out)
    try:
        try:
            content = yaml.load(text, Loader=_YAML)
        except yaml.YAMLError:  # the C parser refuses half characters, as in file names
            content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise _error(path, f"not YAML: {reason}", way_out) from error
    if not isinstance(content, dict):
        raise _error(path, "must hold keys and values", way_out)
    return content


def json_text(content: Mapping[str, Any], indent: int | None = None) -> str:
    """Return content as JSON, which knows neither NaN nor infinity.

    Raises:
        NumericalError: Names the first number that is not finite.
    """
    try:
        return json.dumps(content, indent=indent, allow_nan=False)
    except ValueError as error:
        where = _not_finite(content, "")
        if where is None:
            raise
        raise NumericalError(
            f"{where}, but only finite numbers can be recorded: what measured or "
            "computed it is broken"
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, so that it is there entirely or not at all.

    Raises:
        OSError: The disk refuses.
        NumericalError: A number is not finite.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    text = json_text(content, indent=2) + "\n"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def disk_error(where: Path, reason: OSError | str) -> TreespecError:
    """Return the error for a place below ``output_root`` that cannot be written.

    Args:
        where: The place.
        reason: Why; a full or broken disk is a ``DiskError``.
    """
    kind, said = TreespecError, str(reason)
    if isinstance(reason, OSError) and reason.errno in _LOCKLESS:
        return TreespecError(
            f"output_root: there are no locks where {where} is ({reason.strerror}), "
            "which keep two processes apart; choose another place with output_root=DIR"
        )
    if isinstance(reason, OSError):
        said = reason.strerror or said
        kind = DiskError if reason.errno in _FULL else kind
    return kind(
        f"output_root: cannot write to {where}: {said}. Make room there, or choose "
        "another place with output_root=DIR."
    )


def _not_finite(content: object, where: str) -> str | None:
    """Return where the first number is that is not finite, and what it is."""
    if isinstance(content, float) and not math.isfinite(content):
        return f"{where} is {content}"
    items: Iterable[tuple[object, object]] = ()
    if isinstance(content, Mapping):
        items = content.items()
    elif isinstance(content, list | tuple):
        items = enumerate(content)
    found = (_not_finite(v, f"{where}.{k}".lstrip(".")) for k, v in items)
    return next((place for place in found if place is not None), None)


def _error(path: Path, what: str, way_out: str) -> TreespecError:
    return TreespecError(f"{path}: {what}" + (f"; {way_out}" if way_out else ""))
