"""From what runs left behind to understanding: tables, charts, the tree viewer.

Data on disk, or the outcomes of a run that has just ended, is all that is read; no
model is loaded here. Tables and charts need ``pip install 'treespec[analysis]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treespec.errors import TreespecError

if TYPE_CHECKING:
    from treespec.analysis import plots, tables
    from treespec.analysis.chart import Chart
    from treespec.analysis.live import results_of
    from treespec.analysis.loading import load_results
    from treespec.analysis.replaying import replay
    from treespec.analysis.results import Results

__all__ = [
    "Chart",
    "Results",
    "load_results",
    "plots",
    "replay",
    "results_of",
    "tables",
]

_HOMES = {
    "Chart": "chart",
    "Results": "results",
    "load_results": "loading",
    "plots": "plots",
    "replay": "replaying",
    "results_of": "live",
    "tables": "tables",
}
_EXTRA = ("pandas", "matplotlib", "plotly")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the viewer needs no pandas.

    Raises:
        TreespecError: A library of the extra ``analysis`` is not installed.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise TreespecError(
            f"treespec.analysis.{name} needs {error.name}, which is not installed: "
            "pip install 'treespec[analysis]'"
        ) from error
    return getattr(module, name, module)
