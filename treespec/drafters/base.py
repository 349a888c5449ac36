"""Drafters answer one question: where do candidate tokens come from?

The drafter object holds hyper-parameters (and a draft model's weights); everything that
belongs to requests lives in the session that it starts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.draft import AbstractDraft
from treespec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class DraftSetting:
    """What a drafter must know of the target.

    Attributes:
        vocab_size: Size of the target's vocabulary; no candidate may reach it.
        device: Where the target's trees live.
        eos_ids: Tokens that end a text. What is drafted after one is never committed,
            so a drafter that has its tokens on the host saves itself the work.
        num_slots: Slots of the target's pool, enough for all requests at once.
    """

    vocab_size: int
    device: torch.device
    eos_ids: frozenset[int]
    num_slots: int


@dataclass(frozen=True, slots=True)
class Frontier:
    """Nodes of one request's tree whose children are wanted.

    Attributes:
        request: Key of the request.
        tree: Its tree so far.
        nodes: Ids of the nodes, all at the same depth.  # [F]
        depth: Their depth; 0 for the root.
    """

    request: int
    tree: TokenTree
    nodes: Tensor
    depth: int


class AbstractDraftSession(ABC):
    """A drafter at work for any number of requests."""

    @property
    @abstractmethod
    def num_forwards(self) -> int:
        """Forwards of a draft model so far; 0 without one."""

    @abstractmethod
    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Start a request.

        Args:
            request: Its key.
            prompt: Its token ids.
            num_slots: Slots that the target reserved for it.
        """

    @abstractmethod
    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return candidates for the children of every frontier node."""

    @abstractmethod
    def commit(
        self,
        request: int,
        node_ids: Sequence[int],
        tokens: Sequence[int],
        hidden: Tensor | None,
    ) -> None:
        """Take note of what a step committed.

        Args:
            request: Key of the request.
            node_ids: Accepted nodes from depth 1 downwards.
            tokens: All committed tokens; the first ones are those of the nodes.
            hidden: The target's hidden states of the root and the accepted nodes, if
                the drafter asked for some.  # [1 + A, L, H]
        """

    @abstractmethod
    def release(self, request: int) -> None:
        """End a request."""


class AbstractDrafter(ABC):
    """A source of candidate tokens.

    A final class states the two facts below as plain class attributes.
    """

    @property
    @abstractmethod
    def source_names(self) -> tuple[str, ...]:
        """Names of its sources; a node's ``source`` is an index into them."""

    @property
    @abstractmethod
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers of the target whose outputs it wants; usually none."""

    @abstractmethod
    def start(self, setting: DraftSetting) -> AbstractDraftSession:
        """Return a session for a batch of requests."""
