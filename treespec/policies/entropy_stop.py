"""Stop drafting where the draft's law is flat: AdaEDL."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treespec.costs import Costs
from treespec.errors import TreespecError, require_number
from treespec.policies.base import AbstractDraftPolicy, Growth, Situation
from treespec.tree import Layer, TokenTree
from treespec.types import Budget, Forecast, ProposalKind, StepRecord


@dataclass(frozen=True, slots=True)
class EntropyStop(AbstractDraftPolicy):
    """Lets another policy's tree end below nodes of which the draft is unsure.

    ``1 - sqrt(gamma * H(q))``, H being the entropy in nats, estimates from below how
    often a token drawn from q is accepted (AdaEDL, 2410.18351). Where it is below the
    threshold, the children that were drawn from q are kept, but none is expanded: to
    drop them for what they are would bias the output, and to have them verified costs
    little once q is known. Only children of the nodes that the drafter was just asked
    about are expanded: with it a policy does not return to earlier nodes.

    If the proposal is sampled, q is the law that was drawn from; if not, the draft's
    own, where all tokens that the draft does not name count as one. Waits for the
    device once per layer.

    Attributes:
        policy: The policy that grows the tree.
        threshold: Least estimated acceptance, in [0, 1]; 0 stops at
            H > 1 / gamma.
        gamma: Factor on the entropy, > 0.
    """

    policy: AbstractDraftPolicy
    threshold: float = 0.3
    gamma: float = 0.2

    def __post_init__(self) -> None:
        """Check the wrapped policy and the bounds."""
        if not isinstance(self.policy, AbstractDraftPolicy):
            raise TreespecError(
                f"policy.policy must be a draft policy, got {self.policy!r}; give it a "
                "_target_, as in conf/policy/entropy_stop.yaml"
            )
        for name in ("threshold", "gamma"):
            require_number(f"policy.{name}", getattr(self, name))
        if not 0 <= self.threshold <= 1:
            raise TreespecError(
                f"policy.threshold must be in [0, 1], got {self.threshold}; 1 expands "
                "below sure nodes only"
            )
        if not 0 < self.gamma < float("inf"):
            raise TreespecError(f"policy.gamma must be > 0, got {self.gamma}")

    @property
    def proposal(self) -> ProposalKind:
        """As the wrapped policy draws."""
        return self.policy.proposal

    @property
    def max_children(self) -> int | None:
        """As of the wrapped policy."""
        return self.policy.max_children

    @property
    def ends_siblings_early(self) -> bool:
        """As of the wrapped policy."""
        return self.policy.ends_siblings_early

    @property
    def prunes(self) -> bool:
        """As of the wrapped policy."""
        return self.policy.prunes

    @property
    def whole(self) -> Budget | None:
        """As of the wrapped policy."""
        return self.policy.whole

    @property
    def wants_costs(self) -> bool:
        """As the wrapped policy does."""
        return self.policy.wants_costs

    def with_costs(self, costs: Costs) -> EntropyStop:
        """Tell the wrapped policy what forwards cost."""
        return replace(self, policy=self.policy.with_costs(costs))

    def init(self) -> Any:
        """Return what the wrapped policy remembers."""
        return self.policy.init()

    def observe(self, state: Any, record: StepRecord) -> Any:
        """Return what the wrapped policy remembers."""
        return self.policy.observe(state, record)

    def opens(self, situation: Situation, budget: Budget) -> bool:
        """Return whether the wrapped policy lets a draft model run."""
        return self.policy.opens(situation, budget)

    def grow(self, growth: Growth) -> Layer | None:
        """Return the wrapped policy's layer; some of it is not to be expanded."""
        layer = self.policy.grow(growth)
        if layer is None:
            return None
        new = torch.arange(layer.size, device=layer.parents.device) + growth.tree.size
        sure = growth.frontier[self._is_sure(self._laws(growth, layer))]
        may_grow = new[torch.isin(layer.parents, sure)]
        wanted = new if layer.expand is None else layer.expand
        return replace(layer, expand=wanted[torch.isin(wanted, may_grow)])

    def forecast(
        self, tree: TokenTree, situation: Situation, num_forwards: int
    ) -> Forecast | None:
        """Return what the wrapped policy expects."""
        return self.policy.forecast(tree, situation, num_forwards)

    def prune(self, tree: TokenTree, budget: Budget, situation: Situation) -> Tensor:
        """Return what the wrapped policy has verified."""
        return self.policy.prune(tree, budget, situation)

    def _laws(self, growth: Growth, layer: Layer) -> Tensor:  # [F, V]
        """Return the laws that the children are from."""
        if layer.draft_probs is not None:
            return layer.draft_probs
        return growth.draft.probs(growth.vocab_size)

    def _is_sure(self, laws: Tensor) -> Tensor:  # [F, V] -> [F] bool
        """Return where the estimated acceptance is high enough."""
        unnamed = (1 - laws.sum(dim=-1)).clamp(min=0)
        entropy = torch.special.entr(laws).sum(dim=-1) + torch.special.entr(unnamed)
        is_sure: Tensor = 1 - (self.gamma * entropy).sqrt() >= self.threshold
        return is_sure
