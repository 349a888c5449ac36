"""What tests of the whole application share: tiny models on disk, and a command."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.models.folder import save_folder
from tests.tiny import perturbed, tiny_model
from treespec.cli import run_command
from treespec.sinks.reader import Run, read_run

# Tiny matrices gain nothing from threads, and lose much where cores are shared.
torch.set_num_threads(1)

PROMPTS = {
    "copy": "the cat and the dog and the cat",
    "list": "a, b, c, a, b, c, a",
    "plain": "where is the sea",
}


SIMPLE = ("drafter=prompt_lookup", "policy=top_k_tree", "controller=constant")
"""Parts of a test's run that names no others: no costs are measured for them."""


@dataclass(frozen=True, slots=True)
class TinyFiles:
    """Folders of tiny models and a prompt file."""

    target: Path
    draft: Path
    prompts: Path

    @property
    def overrides(self) -> list[str]:
        """What every command of a test needs."""
        return [
            "pair=custom",
            f"pair.target.path={self.target}",
            "dataset=jsonl",
            f"dataset.path={self.prompts}",
            "max_new_tokens=12",
            "wandb.mode=disabled",
        ]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> TinyFiles:
    folder = tmp_path_factory.mktemp("tiny")
    target = tiny_model("llama", seed=1)
    prompts = folder / "prompts.jsonl"
    rows = [
        {"id": name, "category": "tiny", "turns": [text], "chat": name != "plain"}
        for name, text in PROMPTS.items()
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TinyFiles(
        target=save_folder(folder / "target", target),
        draft=save_folder(folder / "draft", perturbed(target, 0.1, seed=2)),
        prompts=prompts,
    )


@pytest.fixture
def command(
    tiny_files: TinyFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Callable[..., Ended]:
    """Run ``treespec`` in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))

    def run(*arguments: str, tiny: bool = True, verb: str | None = None) -> Ended:
        given = tiny_files.overrides if tiny else []
        if tiny and verb is None:
            given = [*given, *_simple(arguments)]
        first = [verb] if verb else []
        code = run_command([*first, *given, *arguments])
        return Ended(code, *capfd.readouterr())

    return run


def _simple(arguments: Sequence[str]) -> list[str]:
    """Return the simple parts, where the arguments choose no other."""
    chosen = {argument.partition("=")[0] for argument in arguments}
    return [part for part in SIMPLE if part.partition("=")[0] not in chosen]


@pytest.fixture
def read_runs(tmp_path: Path) -> Callable[..., list[Run]]:
    """Read all finished runs of the working directory, in the order of their keys."""

    def read(root: str = "outputs") -> list[Run]:
        return [
            read_run(done.parent) for done in sorted(tmp_path.glob(f"{root}/*/*/DONE"))
        ]

    return read
