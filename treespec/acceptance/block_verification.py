"""Block verification: a whole chain is weighed before any of it is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from treespec.acceptance.base import (
    AbstractAcceptanceRule,
    draft_law,
    positive_mass,
    target_law,
)
from treespec.chance import AbstractChance
from treespec.sampling import Sampling
from treespec.tree import ROOT, HostTree, TokenTree
from treespec.types import Acceptance, ProposalKind


@dataclass(frozen=True, slots=True)
class BlockVerification(AbstractAcceptanceRule):
    """Keeps the longest prefix of a chain that passes its test (2403.10444).

    The ratios p/q along the chain are multiplied up, capped at 1, to the probability
    with which each prefix may stay; prefixes are then tested from the longest to the
    shortest. Never accepts fewer tokens than testing them one by one, and is optimal
    among rules for one chain.
    """

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False
    proposals = MappingProxyType(
        {ProposalKind.WITH_REPLACEMENT: 1, ProposalKind.WITHOUT_REPLACEMENT: 1}
    )

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the accepted part of the chain; waits for the device at every node.

        Raises:
            NumericalError: The target's or the draft's logits are NaN.
        """
        host = tree.host()
        chain = _chain(host)
        target_probs = [target_law(target_logits, x, sampling) for x in chain]
        draft_probs = [draft_law(tree, host, node) for node in chain[:-1]]
        reach = _reach(host, chain, target_probs, draft_probs)
        length = len(chain) - 1
        if length == 0 or chance.accepts(reach[length]):
            bonus = int(chance.draw(target_probs[length]))
            return Acceptance(tuple(chain[1:]), bonus, "bonus")
        while True:
            length -= 1
            laws = target_probs[length], draft_probs[length]
            residual = (reach[length] * laws[0] - laws[1]).clamp_(min=0)
            mass = positive_mass(residual, chain[length])
            if length == 0 or chance.accepts(_stay(mass, reach[length])):
                # Without a residual the laws are equal but for rounding.
                law = laws[0] if mass is None else residual / mass
                path = tuple(chain[1 : length + 1])
                return Acceptance(path, int(chance.draw(law)), "recovered")


def _chain(host: HostTree) -> list[int]:
    """Return the nodes from the root to the leaf."""
    children, chain = host.children(), [ROOT]
    while children[chain[-1]]:
        (child,) = children[chain[-1]]
        chain.append(child)
    return chain


def _reach(
    host: HostTree,
    chain: list[int],
    target_probs: list[Tensor],
    draft_probs: list[Tensor],
) -> list[Tensor]:
    """Return with which probability each prefix may stay, scalars."""
    reach = [target_probs[0].new_ones(())]
    for node, p, q in zip(chain[1:], target_probs, draft_probs, strict=False):
        token = host.tokens[node]
        reach.append((reach[-1] * p[token] / q[token]).clamp(max=1))
    return reach


def _stay(mass: Tensor | None, reach: Tensor) -> Tensor:
    """Return the probability that a prefix whose extension failed is kept, []."""
    if mass is None:
        return torch.where(reach < 1, 0.0, 1.0)
    return mass / (mass + 1 - reach)
