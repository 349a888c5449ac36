"""The one family of errors that a user of treespec can cause."""

import difflib
from collections.abc import Iterable


class TreespecError(ValueError):
    """The user gave something impossible: key, rule and way out in one line."""


class IncompatiblePartsError(TreespecError):
    """Two parts that are fine alone and wrong together (they would bias the output)."""


class NumericalError(TreespecError):
    """A number came out NaN or infinite, where a finite one is needed."""


class DiskError(TreespecError):
    """The disk took no more of what had to be written: nobody mistyped anything."""


class FetchError(TreespecError):
    """A file of a model or data set could not be fetched, verified or stored."""


def require_integer(name: str, value: object, least: int, also: str = "") -> None:
    """Refuse a value that is no integer, or too small; true and false are none.

    Args:
        name: The key, for the message.
        value: What was given.
        least: The smallest value allowed.
        also: What else is allowed, for the message.

    Raises:
        TreespecError: Names the key, the rule and the value.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole and isinstance(value, int) and value >= least):
        raise TreespecError(
            f"{name} must be an integer >= {least}{also}, got {value!r}"
        )


def require_number(name: str, value: object) -> None:
    """Refuse a value that is no number; true and false are none.

    Args:
        name: The key, for the message.
        value: What was given.

    Raises:
        TreespecError: Names the key and the value.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number:
        raise TreespecError(f"{name} must be a number, got {value!r}")


def unknown_name(kind: str, name: str, available: Iterable[str]) -> TreespecError:
    """Return the error for a name that does not exist, with the closest one."""
    names = sorted(available)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return TreespecError(
        f"unknown {kind} {name!r}.{hint} Available: {', '.join(names)}"
    )
