"""Chain speculative sampling: accept with the ratio of the laws, else the residual."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from treespec.acceptance.nodewise import (
    AbstractNodewiseRule,
    Siblings,
    reject_in_turn,
    same_law,
)
from treespec.chance import AbstractChance
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class ChainSpeculative(AbstractNodewiseRule):
    """Speculative sampling on one drafted chain (2211.17192, 2302.01318).

    With q the law that a token x was drawn from and p the target's there, accept x with
    probability min(1, p(x) / q(x)). At the first rejection draw the recovered token
    from the residual norm([p - q]+) of that position; after the last node draw the
    bonus token from p. Accepts 1 - TV(p, q) of what it tests: the optimum for one node.
    """

    proposals = MappingProxyType(
        {ProposalKind.WITH_REPLACEMENT: 1, ProposalKind.WITHOUT_REPLACEMENT: 1}
    )

    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent."""
        return reject_in_turn(siblings, chance, same_law)
