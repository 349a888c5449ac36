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
        num_slots: Slots that the texts and the candidates of all requests fill at once.
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
        nodes: Ids of the nodes; none was in a frontier of this tree before.  # [F]
        depth: Number of expansions so far: no node is deeper, and 0 means the root.
        may_forward: Whether a draft model may be run for them. If not, a drafter that
            would have to answers that it knows nothing.
    """

    request: int
    tree: TokenTree
    nodes: Tensor
    depth: int
    may_forward: bool = True


@dataclass(frozen=True, slots=True)
class Successors:
    """The target's likeliest next tokens at the nodes that were verified.

    Attributes:
        after: The nodes' own tokens, the root's first.  # [N]
        tokens: What follows them, best first.  # [N, K]
        logprobs: Log-probabilities, without temperature.  # [N, K]
        line: Rows of the root and of the accepted nodes, from the root downwards. Ids
            in the grown tree are none: a policy may have pruned it.
    """

    after: Tensor
    tokens: Tensor
    logprobs: Tensor
    line: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a step did to one request.

    Attributes:
        node_ids: Accepted nodes from depth 1 downwards, as the tree was grown.
        tokens: All committed tokens; the first ones are those of the nodes.
        hidden: The target's hidden states of the root and the accepted nodes, if the
            drafter wants some.  # [1 + A, L, H]
        successors: What the target says at every verified node, if the drafter wants
            it.
    """

    node_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    hidden: Tensor | None = None
    successors: Successors | None = None


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
            num_slots: Slots that its text and the candidates of one step can fill.
        """

    def num_unread(self, request: int) -> int:
        """Return how many committed tokens a draft model has not read yet."""
        return 0

    @abstractmethod
    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return candidates for the children of every frontier node."""

    @abstractmethod
    def commit(self, request: int, feedback: Feedback) -> None:
        """Take note of what a step committed."""

    @abstractmethod
    def release(self, request: int) -> None:
        """End a request."""


class AbstractDrafter(ABC):
    """A source of candidate tokens.

    A final class states its facts as plain class attributes or as fields.
    """

    @property
    @abstractmethod
    def source_names(self) -> tuple[str, ...]:
        """Names of its sources; a node's ``source`` is an index into them."""

    @property
    @abstractmethod
    def hidden_layers(self) -> tuple[int, ...]:
        """Layers of the target whose outputs it wants; usually none."""

    @property
    def runs_model(self) -> bool:
        """Whether its answers may take a forward of a model."""
        return False

    @property
    def num_successors(self) -> int:
        """How many of the target's likeliest tokens it wants after a verified node."""
        return 0

    def cold(self) -> AbstractDrafter:
        """Return the same drafter without what it remembers of earlier requests.

        Most remember nothing. What one does remember lies in an object that its user
        made and handed to it.
        """
        return self

    @abstractmethod
    def start(self, setting: DraftSetting) -> AbstractDraftSession:
        """Return a session for a batch of requests."""
