"""Greedy acceptance: the target's argmax, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from treespec.acceptance.base import (
    ANY_PROPOSAL,
    AbstractAcceptanceRule,
    check_finite,
    follow,
)
from treespec.chance import AbstractChance
from treespec.sampling import Sampling
from treespec.tree import TokenTree
from treespec.types import Acceptance


@dataclass(frozen=True, slots=True)
class Greedy(AbstractAcceptanceRule):
    """Descend while a child carries the target's argmax.

    Lossless for every tree at temperature 0. Compares tokens, never probabilities: a
    draft's token that is likely, but not the argmax, is not what the target would say.
    """

    lossless = True
    greedy_only = True
    draws_like_autoregressive = True
    proposals = ANY_PROPOSAL

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the argmax path; draws nothing."""
        best = target_logits.max(dim=-1)
        logits: list[float] = best.values.tolist()
        tokens: list[int] = best.indices.tolist()

        def argmax(node: int) -> int:
            check_finite(logits[node], node)
            return tokens[node]

        return follow(tree.host(), argmax)
