"""SpecTr's k-SEQ: independent drafts, all tested against one scaled ratio."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from treespec.acceptance.nodewise import (
    AbstractNodewiseRule,
    Siblings,
    recover,
)
from treespec.chance import AbstractChance
from treespec.types import ProposalKind

_CLOSE = 1e-7
_MAX_STEPS = 60


@dataclass(frozen=True, slots=True)
class KSeq(AbstractNodewiseRule):
    """Accepts each of k drafts with probability min(1, p / (scale q)) (2310.15141).

    The scale is the smallest for which what the k tests accept of a token, together,
    is no more than its target probability. Within a factor 1 - 1/e of the optimum.
    """

    proposals = MappingProxyType({ProposalKind.WITH_REPLACEMENT: None})
    takes_early_ends = False  # the scale is made for k

    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent."""
        target_probs, draft_probs = siblings.target_probs, siblings.draft_probs
        num_drafts = len(siblings.tokens)
        scale = smallest_scale(target_probs, draft_probs, num_drafts)
        for token in siblings.tokens:
            if chance.accepts(target_probs[token] / (scale * draft_probs[token])):
                return token
        capped = torch.minimum(draft_probs, target_probs / scale)
        accepted_once = capped.sum()
        accepted = 1 - (1 - accepted_once) ** num_drafts
        # Of disjoint laws nothing is ever accepted, and nothing has to be taken away.
        taken = capped * (accepted / accepted_once).nan_to_num(nan=0.0)
        return recover((target_probs - taken).clamp_(min=0), siblings, chance)


def smallest_scale(target_probs: Tensor, draft_probs: Tensor, num_drafts: int) -> float:
    """Return the scale at which k tests accept no token too often, in [1, k].

    The root of 1 - (1 - beta)^k = scale beta with beta = sum of min(q, p / scale), by
    regula falsi (the Illinois way), and never below the root: there the residual
    would be negative.

    Args:
        target_probs: The target's law.  # [V]
        draft_probs: The law of every draft.  # [V]
        num_drafts: k.
    """

    def surplus_at(scale: float) -> float:
        """Return by how much the k tests accept more than ``scale`` times one test."""
        accepted = float(torch.minimum(draft_probs, target_probs / scale).sum())
        missed = max(1 - accepted, 0.0)
        return float(1 - missed**num_drafts - scale * accepted)

    low, high = 1.0, float(num_drafts)
    surplus_low, surplus_high = surplus_at(low), surplus_at(high)
    if surplus_low <= 0:
        return low
    side = 0
    for _ in range(_MAX_STEPS):
        if high - low <= _CLOSE or surplus_high == 0:
            break
        share = surplus_low / (surplus_low - surplus_high)
        middle = low + (high - low) * share
        surplus = surplus_at(middle)
        if surplus > 0:
            low, surplus_low = middle, surplus
            surplus_high /= 2 if side > 0 else 1
            side = 1
        else:
            high, surplus_high = middle, surplus
            surplus_low /= 2 if side < 0 else 1
            side = -1
    return high
