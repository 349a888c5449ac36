"""GSM8K (2110.14168): grade school arithmetic in words, with a number as the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.published import PublishedFile, check_path, published_prompts

FILE = PublishedFile(
    name="GSM8K",
    url="https://raw.githubusercontent.com/openai/grade-school-math/"
    "b52325ad96ea38979fdc222e881ff5d105f95295/grade_school_math/data/test.jsonl",
    num_rows=1319,
)
_ASK = "\n\nThink step by step, and end with the line: #### NUMBER"


@dataclass(frozen=True, slots=True)
class Gsm8kDataset(AbstractDataset):
    """The test set of GSM8K: 1319 questions, each with a worked answer.

    The question is asked through the chat template, and asks for the answer's last line
    in the form of the data set; ``quality=exact_answer`` compares its number.

    Attributes:
        path: ``test.jsonl``, or the hub's Parquet file; ``None`` fetches the former.
    """

    path: str | None = None

    def __post_init__(self) -> None:
        """Check the path."""
        check_path(self.path)

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        prompts = published_prompts(FILE, self.path, _Numbered())
        return choose(prompts, num_prompts)


class _Numbered:
    """Names the rows, which have no names, by their place."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        return {
            "id": f"gsm8k/{self.count}",
            "category": "math",
            "turns": [row["question"] + _ASK],
            "reference": row["answer"],
        }
