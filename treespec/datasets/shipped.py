"""The prompts that ship with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.datasets.jsonl import parse_prompts


@dataclass(frozen=True, slots=True)
class ShippedDataset(AbstractDataset):
    """Self-written prompts for small chat models, eight kinds of task.

    Some repeat much of their input in the answer, where guessing from the prompt
    pays (editing, extraction, summarization, retrieval), and some repeat nothing
    (stories, chat), so that a run shows both sides.
    """

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        file = files("treespec") / "prompts" / "shipped.jsonl"
        lines = file.read_text(encoding="utf-8").split("\n")
        return choose(parse_prompts(lines, "shipped.jsonl"), num_prompts)
