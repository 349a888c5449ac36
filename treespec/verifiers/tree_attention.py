"""Verification of whole trees in one forward (2305.09781)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treespec.models.session import Feed, ModelSession
from treespec.verifiers.base import AbstractVerifier, Candidate, VerifierOutput


@dataclass(frozen=True, slots=True)
class TreeAttention(AbstractVerifier):
    """All nodes of all trees in one row; each node sees itself and its ancestors."""

    def verify(
        self,
        session: ModelSession,
        candidates: Sequence[Candidate],
        hidden_layers: tuple[int, ...] = (),
    ) -> list[VerifierOutput]:
        """Return the target's logits at every node, after one forward."""
        feeds = []
        for candidate in candidates:
            tree = candidate.tree
            if tree.num_drafted == 0:
                feeds.append(Feed(candidate.sequence))
                continue
            nodes = torch.arange(1, tree.size, device=tree.tokens.device)
            feeds.append(Feed(candidate.sequence, tree, nodes))
        outputs = session.run(feeds, hidden_layers)
        return [VerifierOutput(output.logits, output.hidden) for output in outputs]
