"""The token tree: a struct of arrays, and pure functions over it.

Knows nothing of models or caches. Everything here runs on the tree's device without
waiting for it, except what is named ``host``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from treespec.types import ProposalKind

ROOT = 0
NO_PARENT = -1
NOT_EXPANDED = -1
ENDED = -2


@dataclass(frozen=True, slots=True)
class Layer:
    """New nodes that a draft policy adds to a tree in one go.

    Attributes:
        parents: Node ids of the parents; siblings stand in draw order.  # [M]
        tokens: Token ids.  # [M]
        draft_logprobs: log q(token | parent).  # [M]
        sources: Index of the drafter's source.  # [M]
        draft_probs: The laws that the children of this layer's frontier were drawn
            from, one row per frontier node; only if the proposal was sampled.  # [F, V]
        expand: Ids, in the tree with this layer, of the nodes that are to be expanded
            next: new ones, or earlier ones that have not been; ``None`` means all of
            this layer.  # [E]
        may_forward: Whether a draft model may be run to expand them; if not, only
            drafters that need no forward are asked.
        note: What the policy wants to be told when it grows the same tree further.
    """

    parents: Tensor
    tokens: Tensor
    draft_logprobs: Tensor
    sources: Tensor
    draft_probs: Tensor | None = None
    expand: Tensor | None = None
    may_forward: bool = True
    note: Any = None

    @property
    def size(self) -> int:
        """Number of new nodes."""
        return self.tokens.shape[0]


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A tree of candidate tokens for one request; never changed in place.

    Node 0 is the root: the last committed token, which no cache holds yet. Depths,
    ancestors, paths and leaves are derived, never stored; but what ``path_logprobs``
    has found is kept, and a tree that grows carries it on.

    Attributes:
        tokens: Token ids.  # [N]
        parents: Parent ids; ``parents[0] == -1``, else ``parents[i] < i``.  # [N]
        draft_logprobs: log q(token | parent); 0 for the root.  # [N]
        sources: Index of the drafter's source that proposed the node.  # [N]
        proposal: How children were drawn.
        draft_probs: Laws of expanded nodes, if the proposal was sampled.  # [E, V]
        draft_rows: Which expansion the node's was: the row of ``draft_probs`` that its
            children were drawn from; -1 if the drafter was not asked about it, -2 if
            it never will be, for the text ends there.  # [N]
    """

    tokens: Tensor
    parents: Tensor
    draft_logprobs: Tensor
    sources: Tensor
    proposal: ProposalKind
    draft_probs: Tensor | None
    draft_rows: Tensor
    # Never an argument, so that no other way to make a tree can hand on a wrong one.
    _paths: Tensor | None = field(init=False, default=None, repr=False, compare=False)

    @property
    def size(self) -> int:
        """Number of nodes, root included."""
        return self.tokens.shape[0]

    @property
    def num_drafted(self) -> int:
        """Number of nodes, root excluded."""
        return self.size - 1

    @property
    def is_expanded(self) -> Tensor:  # [N] bool
        """Whether nothing more is to be asked about a node."""
        return self.draft_rows != NOT_EXPANDED

    def extend(self, layer: Layer, frontier: Tensor) -> TokenTree:
        """Return a new tree with ``layer`` appended.

        Args:
            layer: The new nodes.
            frontier: Node ids that the drafter was asked about: the rows of
                ``layer.draft_probs``.  # [F]
        """
        device = self.tokens.device
        fresh = self.parents.new_full((layer.size,), NOT_EXPANDED)
        rows = torch.arange(1, frontier.shape[0] + 1, device=device)
        rows += self.draft_rows.amax()
        draft_probs = layer.draft_probs
        if draft_probs is not None and self.draft_probs is not None:
            draft_probs = torch.cat((self.draft_probs, draft_probs))
        elif draft_probs is not None:
            draft_probs = draft_probs.clone()
        tree = TokenTree(
            tokens=torch.cat((self.tokens, layer.tokens)),
            parents=torch.cat((self.parents, layer.parents)),
            draft_logprobs=torch.cat((self.draft_logprobs, layer.draft_logprobs)),
            sources=torch.cat((self.sources, layer.sources)),
            proposal=self.proposal,
            draft_probs=draft_probs,
            draft_rows=torch.cat(
                (self.draft_rows.index_copy(0, frontier, rows), fresh)
            ),
        )
        if self._paths is not None:
            above = self._paths.index_select(0, layer.parents)
            tree._keep_paths(torch.cat((self._paths, above + layer.draft_logprobs)))
        return tree

    def end(self, nodes: Tensor) -> TokenTree:  # [M]
        """Return the tree with nodes that are never to be expanded."""
        tree = replace(self, draft_rows=self.draft_rows.index_fill(0, nodes, ENDED))
        if self._paths is not None:
            tree._keep_paths(self._paths)
        return tree

    def select(self, keep: Tensor) -> TokenTree:
        """Return the tree of some nodes, numbered anew in the same order.

        Args:
            keep: Ids in ascending order; the root, and with every node its
                parent.  # [K]
        """
        places = torch.zeros_like(self.parents)
        places[keep] = torch.arange(keep.shape[0], device=keep.device)
        parents = places[self.parents[keep]]
        parents[ROOT] = NO_PARENT
        return replace(
            self,
            tokens=self.tokens[keep],
            parents=parents,
            draft_logprobs=self.draft_logprobs[keep],
            sources=self.sources[keep],
            draft_rows=self.draft_rows[keep],
        )

    def path_logprobs(self) -> Tensor:  # [N]
        """Return the log-probability of each node's path."""
        if self._paths is None:
            self._keep_paths(path_sums(self.draft_logprobs, self.parents))
        assert self._paths is not None
        return self._paths

    def _keep_paths(self, paths: Tensor) -> None:
        object.__setattr__(self, "_paths", paths)  # a cache, so the tree may be frozen

    def host(self) -> HostTree:
        """Copy the structure to the host; waits for the device once."""
        structure = (self.tokens, self.parents, self.sources, self.draft_rows)
        tokens, parents, sources, draft_rows = torch.stack(structure).tolist()
        return HostTree(tokens, parents, sources, draft_rows)


@dataclass(frozen=True, slots=True)
class HostTree:
    """The structure of a tree as Python numbers, for walks from node to node.

    Attributes:
        tokens: Token ids.  # [N]
        parents: Parent ids.  # [N]
        sources: Indices of the drafter's sources.  # [N]
        draft_rows: Rows of ``draft_probs`` that the children were drawn from; -1 if
            the drafter was not asked.  # [N]
    """

    tokens: list[int]
    parents: list[int]
    sources: list[int]
    draft_rows: list[int]

    def children(self) -> list[list[int]]:
        """Return each node's children in draw order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return children

    def depths(self) -> list[int]:
        """Return each node's depth; the root has depth 0."""
        depths = [0] * len(self.parents)
        for node, parent in enumerate(self.parents[1:], start=1):
            depths[node] = depths[parent] + 1
        return depths

    def ranks(self) -> list[int]:
        """Return each node's draw-order rank among its siblings; 0 for the root."""
        ranks = [0] * len(self.parents)
        for siblings in self.children():
            for rank, node in enumerate(siblings):
                ranks[node] = rank
        return ranks

    def path(self, node: int) -> list[int]:
        """Return the node ids from the root (excluded) down to ``node``."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def leaves(self) -> list[int]:
        """Return the nodes without children."""
        return [node for node, below in enumerate(self.children()) if not below]


def root_tree(token: int, proposal: ProposalKind, device: torch.device) -> TokenTree:
    """Return the tree that holds only its root."""
    return TokenTree(
        tokens=torch.tensor([token], device=device),
        parents=torch.tensor([NO_PARENT], device=device),
        draft_logprobs=torch.zeros(1, device=device),
        sources=torch.zeros(1, dtype=torch.int64, device=device),
        proposal=proposal,
        draft_probs=None,
        draft_rows=torch.tensor([NOT_EXPANDED], device=device),
    )


def ancestor_mask(parents: Tensor) -> Tensor:
    """Return which nodes are an ancestor of which, or the node itself.

    Args:
        parents: Parent ids, -1 for the root.  # [N]

    Returns:
        ``mask[i, j]`` is true where j is i or an ancestor of i.  # [N, N] bool
    """
    reach = torch.eye(parents.shape[0], dtype=torch.bool, device=parents.device)
    for jump in _jumps(parents):
        reach = reach | reach.index_select(0, jump)
    return reach


def node_depths(parents: Tensor, max_depth: int | None = None) -> Tensor:  # [N] -> [N]
    """Return each node's depth; the root has depth 0, and none is below max_depth."""
    return path_sums((parents != NO_PARENT).long(), parents, max_depth)


def path_logprobs(tree: TokenTree) -> Tensor:  # [N]
    """Return the log-probability of each node's path."""
    return tree.path_logprobs()


def sibling_ranks(parents: Tensor) -> Tensor:  # [N] -> [N]
    """Return how many earlier entries have the same parent: draw-order ranks."""
    order = parents.argsort(stable=True)
    grouped = parents[order].contiguous()
    places = torch.arange(parents.shape[0], device=parents.device)
    ranks = torch.empty_like(places)
    ranks[order] = places - torch.searchsorted(grouped, grouped)
    return ranks


def path_sums(
    values: Tensor, parents: Tensor, max_depth: int | None = None
) -> Tensor:  # [N]
    """Return the sum of the values along each node's path.

    Args:
        values: One per node, 0 for the root.  # [N]
        parents: Parent ids, -1 for the root.  # [N]
        max_depth: No node is deeper: knowing it saves steps.
    """
    for jump in _jumps(parents, max_depth):
        values = values + values.index_select(0, jump)
    return values


def path_minima(
    values: Tensor, parents: Tensor, max_depth: int | None = None
) -> Tensor:  # [N]
    """Return the least value along each node's path, the root's included.

    Args:
        values: One per node.  # [N]
        parents: Parent ids, -1 for the root.  # [N]
        max_depth: No node is deeper: knowing it saves steps.
    """
    for jump in _jumps(parents, max_depth):
        values = torch.minimum(values, values.index_select(0, jump))
    return values


def _jumps(parents: Tensor, max_depth: int | None = None) -> Iterator[Tensor]:
    """Yield every node's ancestor 1, 2, 4, ... above it; the root where there is none.

    So what runs along a path takes log2 N steps and no loop over nodes.
    """
    longest = max(parents.shape[0] - 1, 0)
    if max_depth is not None:
        longest = min(longest, max_depth)
    jump = parents.clamp(min=ROOT)
    for step in range(longest.bit_length()):
        if step:
            jump = jump.index_select(0, jump)
        yield jump
