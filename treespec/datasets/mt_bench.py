"""MT-Bench (2306.05685): conversations of two turns in eight categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from treespec.datasets.files import Row
from treespec.datasets.published import AbstractPublishedDataset, PublishedFile

FILE = PublishedFile(
    name="MT-Bench",
    url="https://raw.githubusercontent.com/lm-sys/FastChat/"
    "589532dcfa83700f950b9aa3983416c543afabc0/"
    "fastchat/llm_judge/data/mt_bench/question.jsonl",
    num_rows=80,
)
CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)


@dataclass(frozen=True, slots=True)
class MtBenchDataset(AbstractPublishedDataset):
    """MT-Bench's ``question.jsonl``: 80 conversations of two turns.

    Attributes:
        path: The file; ``None`` fetches it.
    """

    file: ClassVar[PublishedFile] = FILE

    def adapted(self, row: Row) -> dict[str, Any]:
        """Return the keys of a prompt."""
        given = row.content
        # The hub has copies that call these fields prompt_id and prompt.
        names = [name for name in ("question_id", "prompt_id") if name in given]
        return {
            "id": str(given[names[0] if names else "id"]),
            "category": given["category"],
            "turns": given["turns"] if "turns" in given else given["prompt"],
            "reference": given.get("reference"),
        }
