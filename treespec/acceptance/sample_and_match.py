"""Sample-and-match: ask the target first, then see whether the draft guessed it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from treespec.acceptance.base import (
    ANY_PROPOSAL,
    AbstractAcceptanceRule,
    follow,
    target_law,
)
from treespec.sampling import AbstractChance, Sampling
from treespec.tree import TokenTree
from treespec.types import Acceptance


@dataclass(frozen=True, slots=True)
class SampleAndMatch(AbstractAcceptanceRule):
    """Draw one token from the target per node; descend while a child carries it.

    Lossless for every tree, whatever its origin, because the draft has no say in what
    is drawn; equal to ``Greedy`` at temperature 0. One draw per committed token, so
    that a tree whose drafting draws nothing yields the very text that autoregressive
    decoding yields from the same generator.
    """

    lossless = True
    greedy_only = False
    draws_like_autoregressive = True
    proposals = ANY_PROPOSAL

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the sampled path; waits for the device once per committed token."""

        def draw(node: int) -> int:
            return int(chance.draw(target_law(target_logits, node, sampling)))

        return follow(tree.host(), draw)
