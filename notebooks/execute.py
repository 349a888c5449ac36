"""Run all notebooks, one after the other, and stop at the first cell that fails.

    python notebooks/execute.py             # on the committed runs
    python notebooks/execute.py --write     # make the paired .ipynb files anew

Nothing is written without ``--write``, and then no outputs: what a notebook shows
depends on the runs it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

HERE = Path(__file__).parent
_LIMIT_S = 600


def scripts() -> list[Path]:
    """Return the notebooks as scripts, in order."""
    return sorted(HERE.glob("[0-9]*.py"))


def execute(paths: Sequence[Path]) -> NotebookNode:
    """Run notebooks in one kernel, each with nothing left of the one before.

    One kernel, as starting and importing takes longer than the notebooks themselves.
    """
    whole = new_notebook()
    for path in paths:
        mark = f"%reset -f\nprint({path.name!r})"
        whole.cells += [new_code_cell(mark), *jupytext.read(path).cells]
    client = NotebookClient(
        whole, timeout=_LIMIT_S, resources={"metadata": {"path": str(HERE)}}
    )
    return client.execute()


def as_text(path: Path) -> str:
    """Return a script as the text of its paired notebook, without outputs."""
    notebook = jupytext.read(path)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # drawn at random otherwise
    return jupytext.writes(notebook, fmt="ipynb") + "\n"


def main() -> None:
    """Run, or write, all notebooks."""
    if "--write" in sys.argv[1:]:
        for path in scripts():
            path.with_suffix(".ipynb").write_text(as_text(path), encoding="utf-8")
        return
    execute(scripts())
    print(f"ok: {len(scripts())} notebooks")


if __name__ == "__main__":
    main()
