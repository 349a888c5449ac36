"""The optimal rule for all but one likeliest tokens and one draw from the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from treespec.acceptance.nodewise import (
    AbstractNodewiseRule,
    Siblings,
    reject_in_turn,
    same_law,
)
from treespec.chance import AbstractChance
from treespec.siblings import PAIR
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class GreedyDraftTransport(AbstractNodewiseRule):
    """Optimal transport for drafts that are greedy but for the last (2502.18779).

    With q' the draft's law without the fixed tokens, accept the drawn token y with
    probability min(1, p(y) / q'(y)), else draw from the residual norm([p - q']+): it
    holds all of p on the fixed tokens, and landing on one of them accepts it.
    """

    proposals = MappingProxyType(
        {ProposalKind.GREEDY_PLUS_RANDOM: None, ProposalKind.ARGMAX_PAIR: PAIR}
    )

    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent."""
        drawn = _drawn_token(siblings)
        fixed = [token for token in siblings.tokens if token != drawn]
        others = siblings.draft_probs.clone()
        others[fixed] = 0
        alone = replace(siblings, tokens=(drawn,), draft_probs=others / others.sum())
        return reject_in_turn(alone, chance, same_law)


def _drawn_token(siblings: Siblings) -> int:
    """Return the one token that was drawn; the others are the likeliest ones."""
    *fixed, last = siblings.tokens
    if siblings.proposal is ProposalKind.ARGMAX_PAIR and fixed:
        likeliest = int(siblings.draft_probs.argmax())
        return fixed[0] if last == likeliest else last
    return last
