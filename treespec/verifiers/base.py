"""Verifiers answer one question: what does the target say at every node?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from treespec.models.session import CachedSequence, ModelSession
from treespec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class VerifierOutput:
    """The target's answers for one tree.

    Attributes:
        logits: Next-token logits after the committed text and the path to each
            node.  # [N, V]
        hidden: Hidden states of each node after the asked-for layers.  # [N, L, H]
    """

    logits: Tensor
    hidden: Tensor | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request's tree, to be verified.

    Attributes:
        sequence: The request in the target's session; its last committed token, the
            tree's root, is pending.
        tree: The tree.
    """

    sequence: CachedSequence
    tree: TokenTree


class AbstractVerifier(ABC):
    """Runs the target over the trees of any number of requests."""

    @abstractmethod
    def verify(
        self,
        session: ModelSession,
        candidates: Sequence[Candidate],
        hidden_layers: tuple[int, ...] = (),
    ) -> list[VerifierOutput]:
        """Return the target's logits at every node of every tree.

        Args:
            session: The target's session.
            candidates: One per request.
            hidden_layers: Layers whose outputs a drafter wants.
        """
