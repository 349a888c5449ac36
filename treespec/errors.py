"""The one family of errors that a user of treespec can cause."""

import difflib
from collections.abc import Iterable


class TreespecError(ValueError):
    """The user gave something impossible: key, rule and way out in one line."""


class IncompatiblePartsError(TreespecError):
    """Two parts that are fine alone and wrong together (they would bias the output)."""


class NumericalError(TreespecError):
    """A model produced NaN logits, so no token can be chosen."""


class FetchError(TreespecError):
    """A model file could not be fetched, verified or stored."""


def unknown_name(kind: str, name: str, available: Iterable[str]) -> TreespecError:
    """Return the error for a name that does not exist, with the closest one."""
    names = sorted(available)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return TreespecError(
        f"unknown {kind} {name!r}.{hint} Available: {', '.join(names)}"
    )
