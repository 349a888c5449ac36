"""GSM8K (2110.14168): grade school arithmetic in words, with a number as the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from treespec.datasets.files import Row
from treespec.datasets.published import AbstractPublishedDataset, PublishedFile

FILE = PublishedFile(
    name="GSM8K",
    url="https://raw.githubusercontent.com/openai/grade-school-math/"
    "b52325ad96ea38979fdc222e881ff5d105f95295/grade_school_math/data/test.jsonl",
    num_rows=1319,
)
_ASK = "\n\nThink step by step, and end with the line: #### NUMBER"


@dataclass(frozen=True, slots=True)
class Gsm8kDataset(AbstractPublishedDataset):
    """The test set of GSM8K: 1319 questions, each with a worked answer.

    The question is asked through the chat template, and asks for the answer's last line
    in the form of the data set; ``quality=exact_answer`` compares its number.

    Attributes:
        path: ``test.jsonl``, or the hub's Parquet file; ``None`` fetches the former.
    """

    file: ClassVar[PublishedFile] = FILE

    def adapted(self, row: Row) -> dict[str, Any]:
        """Return the keys of a prompt; rows have no names, so their place is one."""
        return {
            "id": f"gsm8k/{row.number}",
            "category": "math",
            "turns": [row.content["question"] + _ASK],
            "reference": row.content["answer"],
        }
