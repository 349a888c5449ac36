"""Typical acceptance: keeps what the target finds plausible. Not lossless."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.acceptance.base import (
    ANY_PROPOSAL,
    AbstractAcceptanceRule,
    target_law,
)
from treespec.chance import AbstractChance
from treespec.errors import TreespecError
from treespec.sampling import Sampling
from treespec.tree import ROOT, HostTree, TokenTree
from treespec.types import Acceptance


@dataclass(frozen=True, slots=True)
class TypicalAcceptance(AbstractAcceptanceRule):
    """Accepts every token that is typical of the target; lossy (Medusa, 2401.10774).

    A token is typical if p(x) > min(epsilon, delta exp(-H(p))), H being the entropy of
    the target's law p. The longest typical path wins, of equal ones the likeliest; the
    token that ends the step is drawn from p. At temperature 0 this is the argmax.

    Attributes:
        epsilon: Probability that is always enough, in (0, 1].
        delta: Factor of the threshold that falls with the entropy, > 0.
    """

    lossless = False
    greedy_only = False
    draws_like_autoregressive = False
    proposals = ANY_PROPOSAL

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        """Check the bounds."""
        _require_number("epsilon", self.epsilon, 1.0)
        _require_number("delta", self.delta, torch.inf)

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the longest typical path; waits for the device at every node of it."""
        host = tree.host()
        kept = self._typical(host, target_logits, sampling)
        depths = host.depths()
        best = max(kept, key=lambda node: (depths[node], kept[node]))
        token = int(chance.draw(target_law(target_logits, best, sampling)))
        is_leaf = best not in host.parents
        path = tuple(host.path(best))
        return Acceptance(path, token, "bonus" if is_leaf else "recovered")

    def _typical(
        self, host: HostTree, target_logits: Tensor, sampling: Sampling
    ) -> dict[int, float]:
        """Return the log-likelihood of every node whose whole path is typical."""
        kept, children = {ROOT: 0.0}, host.children()
        for node, below in enumerate(children):
            if node not in kept or not below:
                continue
            law = target_law(target_logits, node, sampling)
            entropy = torch.special.entr(law).sum()
            threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
            for child in below:
                prob = law[host.tokens[child]]
                if prob > threshold:
                    kept[child] = kept[node] + float(prob.log())
        return kept


def _require_number(name: str, value: object, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and isinstance(value, int | float) and 0 < value <= most):
        bounds = "in (0, 1]" if most == 1 else "> 0"
        raise TreespecError(f"acceptance.{name} must be {bounds}, got {value!r}")
