"""Multi-round rejection for siblings that differ from each other."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from treespec.acceptance.nodewise import (
    AbstractNodewiseRule,
    Siblings,
    law_without,
    reject_in_turn,
)
from treespec.chance import AbstractChance
from treespec.types import ProposalKind


@dataclass(frozen=True, slots=True)
class RejectionWithoutReplacement(AbstractNodewiseRule):
    """Tests siblings in draw order, each against its own law (2402.12374, 2402.14160).

    After every rejection the target's law becomes the residual norm([p - q]+), with q
    as it was for the rejected token; then q loses that token. The rule of Sequoia and
    of RSD.
    """

    proposals = MappingProxyType(
        {ProposalKind.WITHOUT_REPLACEMENT: None, ProposalKind.WITH_REPLACEMENT: 1}
    )

    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent."""
        return reject_in_turn(siblings, chance, law_without)
