"""The prompts that ship with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.files import line_rows
from treespec.datasets.jsonl import prompts_of


@dataclass(frozen=True, slots=True)
class ShippedDataset(AbstractDataset):
    """Self-written prompts for small chat models: nine kinds of task, eight of each.

    Some repeat much of their input in the answer, where guessing from the prompt
    pays (editing, extraction, summarization), and some repeat nothing
    (stories, chat), so that a run shows both sides.
    """

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        file = files("treespec") / "prompts" / "shipped.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n")
        rows = line_rows(lines, "shipped.jsonl")
        return choose(prompts_of(rows, "shipped.jsonl"), num_prompts)
