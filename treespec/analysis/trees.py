"""The trees of a generation, step by step, as what draws them needs them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from treespec.analysis.layout import Layout, depths_of, tidy_tree
from treespec.errors import TreespecError
from treespec.tree import NO_PARENT, ROOT
from treespec.types import GenerationResult, NodeTrace, StepRecord

Kind = Literal["root", "accepted", "rejected", "unreached", "cut", "bonus", "recovered"]
MARKS: dict[Kind, str] = {
    "root": "●",
    "accepted": "✓",
    "rejected": "✗",
    "unreached": "·",
    "cut": "✂",
    "bonus": "★",
    "recovered": "↻",
}
"""One sign for what became of a node, for readers without colours."""


@dataclass(frozen=True, slots=True)
class StepTree:
    """One step: its tree, and as the last node the token that ended the step.

    That token hangs below the last accepted node; there is none if the step was cut.

    Attributes:
        record: What the step did.
        start: Place of its first committed token among the new tokens.
        parents: Parent ids, -1 for the root.  # [N]
        tokens: Token ids.  # [N]
        traces: Of the drafted nodes: node i is ``traces[i - 1]``.
        kinds: What became of each node.  # [N]
    """

    record: StepRecord
    start: int
    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    traces: tuple[NodeTrace, ...]
    kinds: tuple[Kind, ...]

    def layout(self) -> Layout:
        """Return where the nodes stand."""
        return tidy_tree(self.parents)

    def depths(self) -> list[int]:
        """Return each node's depth, 0 for the root."""
        return depths_of(self.parents)

    def trace(self, node: int) -> NodeTrace | None:
        """Return a drafted node's trace; root and next token have none."""
        return self.traces[node - 1] if 0 < node <= len(self.traces) else None

    @property
    def on_path(self) -> frozenset[int]:
        """The nodes of the committed text: root, accepted nodes, next token."""
        live = ("root", "accepted", "bonus", "recovered")
        return frozenset(n for n, kind in enumerate(self.kinds) if kind in live)


def step_trees(result: GenerationResult) -> list[StepTree]:
    """Return a generation's steps with their trees.

    Args:
        result: A generation; a step without traces becomes a tree without drafts.

    Raises:
        TreespecError: A step's traces are not its nodes 1, 2, ...
    """
    traces: dict[int, list[NodeTrace]] = defaultdict(list)
    for trace in result.traces:
        traces[trace.step].append(trace)
    trees, start = [], 1  # the prefill yields the first token
    for record in result.steps:
        trees.append(_step_tree(record, traces[record.step], start, result.tokens))
        start += record.num_committed
    return trees


def _step_tree(
    record: StepRecord, traces: list[NodeTrace], start: int, tokens: tuple[int, ...]
) -> StepTree:
    traces.sort(key=lambda trace: trace.node)
    ids = [trace.node for trace in traces]
    whole = ids == list(range(1, len(ids) + 1))
    if not whole or any(not ROOT <= trace.parent < trace.node for trace in traces):
        raise TreespecError(f"step {record.step}: its traces are not those of a tree")
    end = start + record.num_committed
    if end > len(tokens):
        raise TreespecError(f"step {record.step}: committed more tokens than there are")
    parents = [NO_PARENT, *(trace.parent for trace in traces)]
    drafted = [tokens[start - 1], *(trace.token for trace in traces)]
    kinds: list[Kind] = ["root", *(trace.verdict for trace in traces)]
    if record.next_kind is not None:
        accepted = (node for node, kind in enumerate(kinds) if kind == "accepted")
        parents.append(max(accepted, default=ROOT))
        drafted.append(tokens[end - 1])
        kinds.append(record.next_kind)
    return StepTree(
        record=record,
        start=start,
        parents=tuple(parents),
        tokens=tuple(drafted),
        traces=tuple(traces),
        kinds=tuple(kinds),
    )
