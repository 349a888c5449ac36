"""Trees of a few prompts, drawn, for whoever shows runs without the viewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treespec.analysis.trees import StepTree, step_trees
from treespec.analysis.trees_svg import step_svg
from treespec.analysis.viewer_words import find_words
from treespec.analysis.visible import visible_text
from treespec.errors import require_integer
from treespec.outcome import PromptOutcome
from treespec.sinks.base import Picture, RunInfo


@dataclass(frozen=True, slots=True)
class TreePictures:
    """Draws one step of each of some prompts, if their nodes were traced.

    The prompts lie evenly over the run; the step is the middle one of those that
    drafted something, so that nobody has chosen a pretty one.

    Attributes:
        max_prompts: Most prompts.
    """

    max_prompts: int = 10

    def __post_init__(self) -> None:
        """Check the number."""
        require_integer("sink.wandb.pictures.max_prompts", self.max_prompts, 1)

    def __call__(
        self, run: RunInfo, outcomes: Sequence[PromptOutcome]
    ) -> list[Picture]:
        """Return the pictures of a run."""
        chosen = [(outcome, _middle(outcome)) for outcome in self._some(outcomes)]
        drawn = [(outcome, tree) for outcome, tree in chosen if tree is not None]
        if not drawn:
            return []
        tokens = {token for _, tree in drawn for token in tree.tokens}
        labels = find_words(run).labels(tokens)
        pictures = []
        for outcome, tree in drawn:
            title = visible_text(f"Step {tree.record.step} of prompt {outcome.id}")
            svg = step_svg(tree, labels.__getitem__, title)
            pictures.append(Picture(title=title, svg=svg))
        return pictures

    def _some(self, outcomes: Sequence[PromptOutcome]) -> list[PromptOutcome]:
        traced = [outcome for outcome in outcomes if outcome.speculative.traces]
        count = min(len(traced), self.max_prompts)
        return [traced[place * len(traced) // count] for place in range(count)]


def _middle(outcome: PromptOutcome) -> StepTree | None:
    drafted = [tree for tree in step_trees(outcome.speculative) if tree.traces]
    return drafted[(len(drafted) - 1) // 2] if drafted else None
