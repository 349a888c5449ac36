"""Spec-Bench (2401.07851): six kinds of task on which speculation is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from treespec.datasets.files import Row
from treespec.datasets.mt_bench import CATEGORIES
from treespec.datasets.published import AbstractPublishedDataset, PublishedFile

FILE = PublishedFile(
    name="Spec-Bench",
    url="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/"
    "question.jsonl",
    num_rows=480,
)
MULTI_TURN = "multi_turn"
"""The category that is MT-Bench: eight kinds of conversation, counted as one."""


@dataclass(frozen=True, slots=True)
class SpecBenchDataset(AbstractPublishedDataset):
    """Spec-Bench's ``question.jsonl``: 480 prompts, 80 of each of six kinds.

    The conversations of MT-Bench have eight categories there, and are one here
    (``multi_turn``), as in its own tables.

    Attributes:
        path: The file; ``None`` fetches it.
    """

    file: ClassVar[PublishedFile] = FILE

    def adapted(self, row: Row) -> dict[str, Any]:
        """Return the keys of a prompt."""
        given = row.content
        category = given["category"]
        return {
            "id": str(given["question_id"] if "question_id" in given else given["id"]),
            "category": MULTI_TURN if category in CATEGORIES else category,
            "turns": given["turns"],
            "reference": given.get("reference"),
        }
