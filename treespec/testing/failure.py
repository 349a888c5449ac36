"""The one error of the conformance kit."""

from __future__ import annotations

from treespec.errors import TreespecError


class ConformanceError(TreespecError, AssertionError):
    """A plug-in breaks its contract; tells which part of it, and shows the case.

    The first line says what is wrong; the lines below it show the smallest case found.
    """
