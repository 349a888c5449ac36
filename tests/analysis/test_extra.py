"""Without the extra: one line that says what to install, and the rest still works."""

import subprocess
import sys

import pytest

HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name={library!r})
sys.meta_path.insert(0, Hidden())
import treespec.analysis
"""


def run(library, code):
    text = HIDING.format(library=library) + code
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False
    )


def test_a_missing_library_is_one_line_with_the_way_out():
    ended = run("pandas", "from treespec.analysis import load_results")
    line = ended.stderr.splitlines()[-1]
    assert line.startswith("treespec.errors.TreespecError")
    assert line.endswith("pandas, which is not installed: "
                         "pip install 'treespec[analysis]'")  # fmt: skip


@pytest.mark.parametrize("library", ["pandas", "matplotlib", "plotly"])
def test_the_package_itself_needs_none_of_them(library):
    assert run(library, "").returncode == 0


def test_tables_need_no_library_that_draws():
    code = "from treespec.analysis import load_results, tables, plots"
    assert run("matplotlib", code).returncode == run("plotly", code).returncode == 0
