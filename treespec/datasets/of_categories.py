"""Prompts of some categories of another dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treespec.datasets.base import AbstractDataset, Prompt, choose
from treespec.errors import TreespecError, unknown_name


@dataclass(frozen=True, slots=True)
class OfCategories(AbstractDataset):
    """Some kinds of task only.

    Attributes:
        dataset: Where the prompts are.
        categories: Which kinds.
    """

    dataset: AbstractDataset
    categories: Sequence[str]

    def __post_init__(self) -> None:
        """Check the values."""
        if not isinstance(self.dataset, AbstractDataset):
            raise TreespecError(
                f"dataset.dataset must be a dataset, got {self.dataset!r}; give "
                "dataset.dataset._target_=CLASS"
            )
        if not isinstance(self.categories, list | tuple) or not self.categories:
            raise TreespecError(
                f"dataset.categories must be a list of names, got {self.categories!r}"
            )

    def load(self, num_prompts: int | None) -> list[Prompt]:
        """Return the prompts; see the base class for which ones."""
        prompts = self.dataset.load(None)
        known = {prompt.category for prompt in prompts}
        for category in self.categories:
            if category not in known:
                raise unknown_name("dataset.categories", str(category), known)
        wanted = [prompt for prompt in prompts if prompt.category in self.categories]
        return choose(wanted, num_prompts)
