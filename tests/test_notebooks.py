"""The notebooks run on the committed runs, and what is committed is clean and small."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SCRIPTS = sorted(NOTEBOOKS.glob("[0-9]*.py"))
MOST_BYTES = 300_000
# Home folders, mounts of one machine, names of hosts.
OF_A_MACHINE = re.compile(rb"/(home|root|work|Users|tmp|mnt|opt)/|\bhostname\b")


def test_all_notebooks_run_on_the_committed_runs():
    """One command; it stops at the first cell that fails, and its error is shown."""
    environment = {**os.environ, "PYTHONPATH": str(NOTEBOOKS.parent)}
    environment.pop("TREESPEC_NOTEBOOK_RUN", None)
    ended = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "execute.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"ok: {len(SCRIPTS)} notebooks" in ended.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_its_script_without_outputs(script):
    notebook = jupytext.read(script.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in notebook.cells] == [
        (cell.cell_type, cell.source) for cell in jupytext.read(script).cells
    ]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "python notebooks/execute.py --write"


def test_a_policy_of_ten_lines_has_ten_lines():
    text = (NOTEBOOKS / "03_your_own_policy.py").read_text()
    body = text[text.index("@dataclass") : text.index("# Does it keep")]
    lines = [line for line in body.splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 10


def test_committed_runs_are_small_and_of_no_machine():
    files = [path for path in (NOTEBOOKS / "example").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert sum(path.name == "DONE" for path in files) == 2
    for path in files:
        found = OF_A_MACHINE.search(path.read_bytes())
        assert found is None, f"{path}: {found}"
