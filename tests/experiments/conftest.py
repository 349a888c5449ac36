"""A made-up study on toy models, and ways to run it and the real ones."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import Ended, TinyFiles

FOLDER = Path(__file__).parents[2] / "experiments"

YAML = """
question: Does guessing pay
  on a toy?
overrides: [policy=chain, controller=constant, controller.max_depth=2]
jobs:
  lookup: [drafter=prompt_lookup]
  model: [drafter=draft_model]
fast: [num_prompts=1]
settings: {price: 2.0, margins: {least: 0.1}}
"""
ANSWER = """
import pandas as pd
import rules
from engine import Answer, Measured, Study
from treespec.analysis import plots

def answer(measured: Measured) -> Answer:
    run = measured.run("lookup")
    names = list(measured.runs)
    prompts = [len(found.outcomes) for found in measured.runs.values()]
    return Answer(
        summary=f"{len(names)} of 2 jobs, price {measured.settings['price']}",
        text=f"Margin {measured.settings['margins']['least']}, "
        f"jobs {', '.join(measured.results.runs['run'])}.",
        tables={"Jobs": pd.DataFrame({"job": names, "prompts": prompts})},
        charts={"depth": plots.acceptance_by_depth(measured.results)},
    )

STUDY = Study(
    answer=answer,
    rules={"price": rules.positive, "margins": rules.record(least=rules.number(0, 1))},
)
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Studies are scripts in a folder: a function that imports one by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None) or ""
        if "." not in name and Path(path).parent != FOLDER:
            del sys.modules[name]  # a study that a test made up


@pytest.fixture
def study(
    module: Callable[[str], ModuleType],
    tiny_files: TinyFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[..., Ended]:
    """Run a study on toys, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str, home: Path = FOLDER, draft: bool = True) -> Ended:
        # Toys are no bfloat16 models.
        given = [*tiny_files.overrides, "pair.target.dtype=float32"]
        if draft:
            given = [*given, f"pair.draft.path={tiny_files.draft}"]
        main: Any = module("run").main
        words = [word for word in arguments if "=" not in word]
        own = [word for word in arguments if "=" in word]
        code = main([*words, *given, *own], home)
        return Ended(code, *capfd.readouterr())

    return run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one made-up study."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    (folder / "made_up.yaml").write_text(YAML)
    (folder / "made_up.py").write_text(ANSWER)
    (folder / "README.md").write_text(
        "# Studies\n\n<!-- studies: begin -->\nold\n<!-- studies: end -->\n\nMore.\n"
    )
    return folder
