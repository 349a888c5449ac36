"""Orders in which a tree may hold its nodes and the rows of its draft laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from treespec.tree import NO_PARENT, NOT_EXPANDED, TokenTree

Layout = Callable[[TokenTree], TokenTree]
"""From a tree to the same tree in another order."""


def as_grown(tree: TokenTree) -> TokenTree:
    """Leave a tree in the order in which it was drafted."""
    return tree


def scattered(tree: TokenTree) -> TokenTree:
    """Return the same tree in an order that only its documented fields tell.

    Parents still precede their children, and siblings stand in draw order; but nodes
    of other parents stand between siblings, second siblings follow the whole subtree
    of the first, the laws stand in reverse, and a node without children has none.
    """
    host = tree.host()
    ranks = host.ranks()
    late = [sum(ranks[above] for above in host.path(node)) for node in range(tree.size)]
    order = sorted(range(tree.size), key=late.__getitem__)
    places = {node: place for place, node in enumerate(order)} | {NO_PARENT: NO_PARENT}
    moved = replace(
        tree,
        tokens=tree.tokens[order],
        parents=torch.tensor([places[host.parents[node]] for node in order]),
        draft_logprobs=tree.draft_logprobs[order],
        sources=tree.sources[order],
    )
    if tree.draft_probs is None:
        return moved
    above = [node for node in reversed(order) if node in host.parents]
    rows = {node: row for row, node in enumerate(above)}
    return replace(
        moved,
        draft_probs=tree.draft_probs[[host.draft_rows[node] for node in above]],
        draft_rows=torch.tensor([rows.get(node, NOT_EXPANDED) for node in order]),
    )
