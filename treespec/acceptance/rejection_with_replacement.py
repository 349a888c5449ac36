"""Multi-round rejection for siblings that were drawn independently."""

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
class RejectionWithReplacement(AbstractNodewiseRule):
    """Tests siblings in draw order against one draft law (SpecInfer, 2305.09781).

    After every rejection the target's law becomes the residual norm([p - q]+), and q
    stays as it is. A token that was drawn twice fails its second round for certain, but
    the round is held: its residual is a part of the law.
    """

    proposals = MappingProxyType(
        {ProposalKind.WITH_REPLACEMENT: None, ProposalKind.WITHOUT_REPLACEMENT: 1}
    )

    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent."""
        return reject_in_turn(siblings, chance, same_law)
