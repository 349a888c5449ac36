"""Trees and laws in plain text, for messages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treespec.analysis.layout import ASCII, outline
from treespec.sampling import Sampling
from treespec.tree import TokenTree

MOST_NODES = 16
"""Nodes of a tree that a message shows."""


def draw_tree(tree: TokenTree, target_probs: Sequence[Sequence[float]] = ()) -> str:
    """Return a tree, one node a line: its token, and the laws of the next one.

    Args:
        tree: The tree.
        target_probs: The target's law at every node, if there is one.
    """
    host = tree.host()
    lines = [f"{tree.proposal} children, in draw order:"]
    for line in outline(host.parents, ASCII):
        node, laws = line.node, []
        if tree.draft_probs is not None and host.draft_rows[node] >= 0:
            laws.append(f"q {row(tree.draft_probs[host.draft_rows[node]].tolist())}")
        if target_probs:
            laws.append(f"p {row(target_probs[node])}")
        label = f"{line.branch}{host.tokens[node]}"
        lines.append(f"  {label:<12} {'   '.join(laws)}".rstrip())
    if len(lines) > MOST_NODES + 1:
        rest = len(lines) - MOST_NODES - 1
        lines = [*lines[: MOST_NODES + 1], f"  and {rest} more nodes"]
    return "\n".join(lines)


def row(probs: Sequence[float], num_digits: int = 4) -> str:
    """Return a law as one short line."""
    return " ".join(f"{prob:.{num_digits}f}" for prob in probs)


def digits(deviation: float) -> int:
    """Return how many decimals show that numbers differ; 4 at least."""
    return max(4, 1 - math.floor(math.log10(deviation)))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text with aligned columns; the first one is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def describe(sampling: Sampling) -> str:
    """Return a sampling's settings that are not neutral."""
    parts = [f"temperature {sampling.temperature:g}"]
    if sampling.top_k:
        parts.append(f"top-k {sampling.top_k}")
    if sampling.top_p < 1:
        parts.append(f"top-p {sampling.top_p:g}")
    if sampling.repetition_penalty != 1:
        parts.append(f"repetition penalty {sampling.repetition_penalty:g}")
    return ", ".join(parts)
