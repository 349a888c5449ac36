"""Rules that settle one node after the other, on the way down.

Such a rule is a coupling of the target's law at a node with the law of its children:
it returns a token that has the target's law, and is one of the children's as often as
it can. If it is, the walk goes on below that child.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from treespec.acceptance.base import (
    AbstractAcceptanceRule,
    draft_law,
    positive_mass,
    target_law,
)
from treespec.chance import AbstractChance
from treespec.sampling import Sampling
from treespec.tree import ROOT, TokenTree
from treespec.types import Acceptance, ProposalKind


@dataclass(frozen=True, slots=True)
class Siblings:
    """The children of one node, and the two laws that meet there.

    Attributes:
        node: The node, their parent.
        tokens: Their tokens, in draw order; at least one.  # [K]
        target_probs: The target's law.  # [V]
        draft_probs: The law that they were drawn from.  # [V]
        proposal: How they were drawn.
    """

    node: int
    tokens: Sequence[int]
    target_probs: Tensor
    draft_probs: Tensor
    proposal: ProposalKind


class AbstractNodewiseRule(AbstractAcceptanceRule):
    """A lossless rule for sampled trees that is a coupling at every node.

    A final class states its ``proposals`` and writes ``choose``.
    """

    __slots__ = ()

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False

    @abstractmethod
    def choose(self, siblings: Siblings, chance: AbstractChance) -> int:
        """Return the token that follows the siblings' parent.

        Over all draws of the siblings and of ``chance`` it has the target's law.
        """

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the path that survives; waits for the device at every node of it.

        Raises:
            NumericalError: The target's or the draft's logits are NaN.
        """
        host = tree.host()
        children = host.children()
        path = [ROOT]
        while True:
            node = path[-1]
            target_probs = target_law(target_logits, node, sampling)
            if not children[node]:
                bonus = int(chance.draw(target_probs))
                return Acceptance(tuple(path[1:]), bonus, "bonus")
            siblings = Siblings(
                node=node,
                tokens=[host.tokens[child] for child in children[node]],
                target_probs=target_probs,
                draft_probs=draft_law(tree, host, node),
                proposal=tree.proposal,
            )
            token = self.choose(siblings, chance)
            if token not in siblings.tokens:
                return Acceptance(tuple(path[1:]), token, "recovered")
            # Of a token that was drawn twice, the first draw has the subtree.
            path.append(children[node][siblings.tokens.index(token)])


LawOfNext = Callable[[Tensor, int], Tensor]
"""From the law that a token was drawn from to that of the sibling after it."""


def reject_in_turn(
    siblings: Siblings, chance: AbstractChance, law_of_next: LawOfNext
) -> int:
    """Test one sibling after the other; return the token that follows their parent.

    The k-th is accepted with probability min(1, p_k / q_k). A rejection leaves the
    residual p_(k+1) = norm([p_k - q_k]+), and only then the law of the next sibling.
    """
    target_probs, draft_probs = siblings.target_probs, siblings.draft_probs
    for token in siblings.tokens:
        if chance.accepts(target_probs[token] / draft_probs[token]):
            return token
        residual = (target_probs - draft_probs).clamp_(min=0)
        mass = positive_mass(residual, siblings.node)
        if mass is None:  # the laws are equal but for rounding
            return token
        target_probs = residual / mass
        draft_probs = law_of_next(draft_probs, token)
    return int(chance.draw(target_probs))


def same_law(draft_probs: Tensor, token: int) -> Tensor:  # [V] -> [V]
    """Return the law itself: siblings are drawn with replacement."""
    return draft_probs


def law_without(draft_probs: Tensor, token: int) -> Tensor:  # [V] -> [V]
    """Return the law without a token: siblings are drawn without replacement."""
    others = draft_probs.clone()
    others[token] = 0
    return others / others.sum()


def recover(weights: Tensor, siblings: Siblings, chance: AbstractChance) -> int:
    """Draw a token from a residual of any mass, [V].

    Without mass the case has no probability, but for rounding: the likeliest sibling
    is accepted.
    """
    mass = positive_mass(weights, siblings.node)
    if mass is None:
        return max(siblings.tokens, key=lambda x: float(siblings.target_probs[x]))
    return int(chance.draw(weights / mass))
