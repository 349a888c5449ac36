"""MT-Bench (2306.05685): conversations of two turns in eight categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.published import PublishedFile, check_path, published_prompts

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
class MtBenchDataset(AbstractDataset):
    """MT-Bench's ``question.jsonl``: 80 conversations of two turns.

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
    # The hub has copies that call these fields prompt_id and prompt.
    keys = [key for key in ("question_id", "prompt_id") if key in row]
    return {
        "id": str(row[keys[0] if keys else "id"]),
        "category": row["category"],
        "turns": row["turns"] if "turns" in row else row["prompt"],
        "reference": row.get("reference"),
    }
