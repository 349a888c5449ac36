"""Chain speculative sampling: accept with the ratio of the laws, else the residual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from treespec.acceptance.base import AbstractAcceptanceRule, target_law
from treespec.errors import NumericalError
from treespec.sampling import AbstractChance, Sampling
from treespec.tree import ROOT, TokenTree
from treespec.types import Acceptance, ProposalKind


@dataclass(frozen=True, slots=True)
class ChainSpeculative(AbstractAcceptanceRule):
    """Speculative sampling on one drafted chain (2211.17192, 2302.01318).

    With q the law that a token x was drawn from and p the target's there, accept x with
    probability min(1, p(x) / q(x)). At the first rejection draw the recovered token
    from the residual norm([p - q]+) of that position; after the last node draw the
    bonus token from p. Lossless at every temperature.
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
        children = host.children()
        accepted: list[int] = []
        node = ROOT
        while children[node]:
            (child,) = children[node]
            token = host.tokens[child]
            target_probs = target_law(target_logits, node, sampling)
            draft_probs = _draft_law(tree, host.draft_rows[node])
            if not chance.accepts(target_probs[token] / draft_probs[token]):
                residual = (target_probs - draft_probs).clamp_(min=0)
                mass = float(residual.sum())
                _check_residual(mass, node)
                # Without a residual the laws are equal but for rounding: accept.
                if mass > 0:
                    recovered = int(chance.draw(residual / mass))
                    return Acceptance(tuple(accepted), recovered, "recovered")
            accepted.append(child)
            node = child
        bonus = int(chance.draw(target_law(target_logits, node, sampling)))
        return Acceptance(tuple(accepted), bonus, "bonus")


def _draft_law(tree: TokenTree, row: int) -> Tensor:
    assert tree.draft_probs is not None
    assert row >= 0
    return tree.draft_probs[row]


def _check_residual(mass: float, node: int) -> None:
    if math.isnan(mass):
        raise NumericalError(
            f"the draft's probabilities at node {node} of the tree are NaN, so no "
            "token can be chosen; load the draft with dtype float32 or bfloat16, or "
            "check its weights"
        )
