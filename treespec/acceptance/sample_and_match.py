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
from treespec.chance import AbstractChance
from treespec.sampling import Sampling
from treespec.tree import TokenTree
from treespec.types import Acceptance


@dataclass(frozen=True, slots=True)
class SampleAndMatch(AbstractAcceptanceRule):
    """Draw one token from the target per node; descend while a child carries it.

    Lossless for every tree, whatever its origin, because the draft has no say in what
    is drawn; equal to ``Greedy`` at temperature 0.

    It shares its randomness with plain decoding: one draw per committed token, and
    drafting draws from elsewhere. So at any temperature, with any drafter and policy,
    ``decoder.generate(prompts, sampling, seed=s)`` and
    ``decoder.autoregressive().generate(prompts, sampling, seed=s)`` give the same
    text, token for token but for near-ties of rounding. Where a sampled text looks
    wrong, swap this rule in: if the texts then agree, the fault is in the other rule;
    if they part, it is in drafting, caches or verification, at the token where they
    part.
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
