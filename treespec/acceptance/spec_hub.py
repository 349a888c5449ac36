"""SpecHub: two drafts, one of which is always the likeliest token."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from treespec.acceptance.nodewise import (
    AbstractNodewiseRule,
    Siblings,
    recover,
    reject_in_turn,
    same_law,
)
from treespec.chance import AbstractChance
from treespec.siblings import PAIR
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class SpecHub(AbstractNodewiseRule):
    """Couples the target with the pair law of an argmax and a draw (2411.05289).

    With a the draft's likeliest token, a pair is (i, a) with probability q(i), or
    (a, j) with probability q(a) q(j) / (1 - q(a)). Both kinds offer their other token
    first, in that order, and then a, out of what is left of p.
    """

    proposals = MappingProxyType({ProposalKind.ARGMAX_PAIR: PAIR})

    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent."""
        if len(siblings.tokens) < PAIR:
            return reject_in_turn(siblings, chance, same_law)
        first, second = siblings.tokens
        likeliest = int(siblings.draft_probs.argmax())
        draws_likeliest_last = first != likeliest
        other = first if draws_likeliest_last else second
        last_pairs, first_pairs = _pair_masses(siblings.draft_probs, likeliest)
        # What pairs of each kind offer by their other token, one kind after the other.
        left = siblings.target_probs
        if draws_likeliest_last and chance.accepts(left[other] / last_pairs[other]):
            return other
        taken = torch.minimum(left, last_pairs)
        left, open_last = left - taken, (last_pairs - taken).sum()
        if not draws_likeliest_last and chance.accepts(
            left[other] / first_pairs[other]
        ):
            return other
        taken = torch.minimum(left, first_pairs)
        left, open_first = left - taken, (first_pairs - taken).sum()
        # What is still open offers the likeliest token, in the opposite order.
        if not draws_likeliest_last and chance.accepts(left[likeliest] / open_first):
            return likeliest
        left[likeliest] -= torch.minimum(left[likeliest], open_first)
        if draws_likeliest_last and chance.accepts(left[likeliest] / open_last):
            return likeliest
        left[likeliest] -= torch.minimum(left[likeliest], open_last)
        return recover(left, siblings, chance)


def _pair_masses(draft_probs: Tensor, likeliest: int) -> tuple[Tensor, Tensor]:
    """Return the probability of (x, likeliest) and (likeliest, x) for every x, [V]."""
    last = draft_probs.clone()
    last[likeliest] = 0
    return last, last * (draft_probs[likeliest] / last.sum())
