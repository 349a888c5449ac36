"""The oracle: every path by itself, as plain autoregressive decoding would read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.models.session import Feed, ModelSession
from treespec.tree import TokenTree
from treespec.verifiers.base import AbstractVerifier, Candidate, VerifierOutput


@dataclass(frozen=True, slots=True)
class Sequential(AbstractVerifier):
    """One token per forward, path after path; slow, and without any tree mask.

    For tests: what tree attention says must equal this. Accepted nodes keep no slots,
    so the next step feeds them as pending tokens.
    """

    def verify(
        self,
        session: ModelSession,
        candidates: Sequence[Candidate],
        hidden_layers: tuple[int, ...] = (),
    ) -> list[VerifierOutput]:
        """Return the target's logits at every node, after a forward per node."""
        return [self._walk(session, c, hidden_layers) for c in candidates]

    def _walk(
        self,
        session: ModelSession,
        candidate: Candidate,
        hidden_layers: tuple[int, ...],
    ) -> VerifierOutput:
        sequence, host = candidate.sequence, candidate.tree.host()
        root = session.run([Feed(sequence)], hidden_layers)[0]
        logits: dict[int, Tensor] = {0: root.logits[0]}
        hidden: dict[int, Tensor | None] = {
            0: None if root.hidden is None else root.hidden[0]
        }
        committed = list(sequence.tokens)
        for leaf in host.leaves():
            for node in host.path(leaf):
                sequence.tokens.append(host.tokens[node])
                output = session.run([Feed(sequence)], hidden_layers)[0]
                logits[node] = output.logits[0]
                hidden[node] = None if output.hidden is None else output.hidden[0]
            session.rewind(sequence, len(committed))
        return VerifierOutput(
            torch.stack([logits[node] for node in range(candidate.tree.size)]),
            _stack(hidden, candidate.tree),
        )


def _stack(hidden: dict[int, Tensor | None], tree: TokenTree) -> Tensor | None:
    rows = [hidden[node] for node in range(tree.size)]
    present = [row for row in rows if row is not None]
    return torch.stack(present) if present else None
