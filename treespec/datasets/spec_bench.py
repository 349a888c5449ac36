"""Spec-Bench (2401.07851): six kinds of task on which speculation is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.mt_bench import CATEGORIES
from treespec.datasets.published import PublishedFile, check_path, published_prompts

FILE = PublishedFile(
    name="Spec-Bench",
    url="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/"
    "question.jsonl",
    num_rows=480,
)
MULTI_TURN = "multi_turn"
"""The category that is MT-Bench: eight kinds of conversation, counted as one."""


@dataclass(frozen=True, slots=True)
class SpecBenchDataset(AbstractDataset):
    """Spec-Bench's ``question.jsonl``: 480 prompts, 80 of each of six kinds.

    The conversations of MT-Bench have eight categories there, and are one here
    (``multi_turn``), as in its own tables.

    Attributes:
        path: The file; ``None`` fetches it.
    """

    path: str | None = None

    def __post_init__(self) -> None:
        """Check the path."""
        check_path(self.path)

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        return choose(published_prompts(FILE, self.path, _adapted), num_prompts)


def _adapted(row: dict[str, Any]) -> dict[str, Any]:
    category = row["category"]
    return {
        "id": str(row["question_id"] if "question_id" in row else row["id"]),
        "category": MULTI_TURN if category in CATEGORIES else category,
        "turns": row["turns"],
        "reference": row.get("reference"),
    }
