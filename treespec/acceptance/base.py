"""What an acceptance rule is, and what the rules share.

A rule reads a token tree and the target's logits at its nodes, and decides which path
survives and which token ends it. It knows no models and no caches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor

from treespec.chance import AbstractChance
from treespec.errors import IncompatiblePartsError, NumericalError
from treespec.sampling import Sampling
from treespec.tree import ROOT, HostTree, TokenTree
from treespec.types import Acceptance, ProposalKind

ANY_PROPOSAL: Mapping[ProposalKind, int | None] = MappingProxyType(
    dict.fromkeys(ProposalKind)
)
"""The ``proposals`` of a rule that never looks at how a child was drawn."""

RULES_FOR: Mapping[ProposalKind, tuple[str, ...]] = MappingProxyType(
    {
        ProposalKind.DETERMINISTIC: (),
        ProposalKind.WITH_REPLACEMENT: (
            "rejection_with_replacement",
            "k_seq",
            "traversal_verification",
        ),
        ProposalKind.WITHOUT_REPLACEMENT: (
            "rejection_without_replacement",
            "traversal_verification",
        ),
        ProposalKind.GREEDY_PLUS_RANDOM: ("greedy_draft_transport",),
        ProposalKind.ARGMAX_PAIR: ("spec_hub", "greedy_draft_transport"),
    }
)
"""Options of ``acceptance=`` made for trees of a kind, for messages."""

NEED_A_FIXED_NUMBER = frozenset({"k_seq"})
"""Those of them that do not take early ends."""

POLICIES_FOR: Mapping[ProposalKind, str] = MappingProxyType(
    {
        ProposalKind.DETERMINISTIC: "policy=top_k_tree",
        **{
            kind: f"policy=sampled_tree policy.proposal={kind}"
            for kind in ProposalKind
            if kind is not ProposalKind.DETERMINISTIC
        },
    }
)
"""Choices of ``policy=`` that propose a kind, for messages."""


class AbstractAcceptanceRule(ABC):
    """Decides which path of a tree survives.

    A final class states the facts below as plain class attributes.
    """

    @property
    @abstractmethod
    def lossless(self) -> bool:
        """Whether the committed text follows the target's law exactly."""

    @property
    @abstractmethod
    def greedy_only(self) -> bool:
        """Whether the rule is right at temperature 0 only."""

    @property
    @abstractmethod
    def draws_like_autoregressive(self) -> bool:
        """Whether it draws exactly once per committed token, and from the target only.

        Then any tree yields the very text that plain decoding yields from the same
        seed: drafting has a source of randomness of its own.
        """

    @property
    @abstractmethod
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        """The proposals that the rule does not bias.

        Each with the most children per node for which that holds; ``None`` is any.
        """

    takes_early_ends: ClassVar[bool] = True
    """Whether it stays lossless if siblings drawn so far decide on one more."""

    @abstractmethod
    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Return the path that survives and the token that ends the step.

        Args:
            tree: The drafted tree.
            target_logits: The target's next-token logits at every node, after
                ``Sampling.apply_history``.  # [N, V]
            sampling: Turns logits into the target's law.
            chance: Where all randomness comes from.

        Raises:
            NumericalError: A visited node's best logit is NaN or infinite; -inf alone
                bans a token and is no error.
        """

    @property
    def name(self) -> str:
        """The name in records and messages."""
        return type(self).__name__

    def check(
        self,
        proposal: ProposalKind,
        max_children: int | None,
        ends_siblings_early: bool,
        sampling: Sampling,
        policy_name: str,
    ) -> None:
        """Refuse a draft policy or a temperature with which the output would be biased.

        Args:
            proposal: How the policy draws children.
            max_children: Most children it gives a node; ``None`` if it has no bound.
            ends_siblings_early: Whether their number depends on what was drawn.
            sampling: The request's sampling.
            policy_name: The policy's name, for the message.

        Raises:
            IncompatiblePartsError: The two do not go together.
        """
        if self.greedy_only and not sampling.greedy:
            raise IncompatiblePartsError(
                f"acceptance {self.name} is right at temperature 0 only, but "
                f"sampling.temperature is {sampling.temperature}: it would return the "
                "argmax instead of a sample; use acceptance=sample_and_match, or "
                "sampling.temperature=0"
            )
        if proposal not in self.proposals:
            taken = " or ".join(sorted(self.proposals))
            raise IncompatiblePartsError(
                f"policy {policy_name} proposes {proposal} children, but acceptance "
                f"{self.name} is lossless for {taken} only: it would score them by a "
                "law they were not drawn from and bias the output; use "
                f"{_rules_that_take(proposal, ends_siblings_early)}, or "
                f"{self._policies_that_fit()}"
            )
        most = self.proposals[proposal]
        if most is not None and (max_children is None or max_children > most):
            given = "any number of" if max_children is None else f"up to {max_children}"
            raise IncompatiblePartsError(
                f"policy {policy_name} gives a node {given} {proposal} children, but "
                f"acceptance {self.name} is lossless for at most {most}: the others "
                "would be scored by the wrong residual and bias the output; use "
                f"{_rules_that_take(proposal, ends_siblings_early)}, or "
                f"{self._policies_that_fit()}"
            )
        if ends_siblings_early and not self.takes_early_ends:
            raise IncompatiblePartsError(
                f"policy {policy_name} decides by the siblings drawn so far whether "
                f"their parent gets one more, but acceptance {self.name} is lossless "
                "for a number that was fixed before; use "
                f"{_rules_that_take(proposal, ends_siblings_early)}"
            )

    def _policies_that_fit(self) -> str:
        """Return the policies to choose for this rule, for a message."""
        if set(self.proposals.values()) == {1}:
            return "a policy with one child per node: policy=sampled_chain"
        fitting = [
            POLICIES_FOR[kind]
            for kind in sorted(self.proposals)
            if self.proposals[kind] != 1
        ]
        return f"a policy that fits: {', or '.join(fitting)}"


def _rules_that_take(proposal: ProposalKind, ends_siblings_early: bool) -> str:
    """Return the rules to choose for a proposal, for a message."""
    unfit = NEED_A_FIXED_NUMBER if ends_siblings_early else frozenset()
    made_for_it = [rule for rule in RULES_FOR[proposal] if rule not in unfit]
    takes_all = "acceptance=sample_and_match, which takes any tree"
    if not made_for_it:
        return takes_all
    one_of = "one of " if len(made_for_it) > 1 else ""
    return f"{takes_all}, or {one_of}{', '.join(made_for_it)}"


def follow(host: HostTree, choose: Callable[[int], int]) -> Acceptance:
    """Walk down from the root for as long as a child carries the chosen token.

    Siblings with the same token count as one: the walk goes on below all of them.

    Args:
        host: The tree's structure.
        choose: The target's token at a node; called once per depth.
    """
    children = host.children()
    nodes = [ROOT]
    while True:
        token = choose(nodes[0])
        below = [child for node in nodes for child in children[node]]
        matches = [child for child in below if host.tokens[child] == token]
        if not matches:
            path = tuple(host.path(nodes[0]))
            return Acceptance(path, token, "recovered" if below else "bonus")
        nodes = matches


def target_law(target_logits: Tensor, node: int, sampling: Sampling) -> Tensor:
    """Return the target's law at one node, [N, V] -> [V]; waits for the device.

    Raises:
        NumericalError: The node's logits are NaN or infinite.
    """
    logits = target_logits[node]
    check_finite(float(logits.amax()), node)
    return sampling.probs(logits)


def check_finite(best_logit: float, node: int) -> None:
    """Refuse a node whose best logit is no number, so that no token can be chosen.

    NaN spreads through a maximum, so the best logit tells of the whole row.
    """
    if not math.isfinite(best_logit):
        raise NumericalError(
            f"the target's best logit at node {node} of the tree is {best_logit}, so "
            "no token can be chosen; load the target with dtype float32 or bfloat16, "
            "or check its weights and sampling.processors"
        )


def positive_mass(weights: Tensor, node: int) -> Tensor | None:
    """Return the sum of weights that are >= 0, ``None`` if it is 0; [V] -> [].

    Raises:
        NumericalError: The sum is NaN: the draft's law is no law.
    """
    mass = weights.sum()
    host_mass = float(mass)
    if math.isnan(host_mass):
        raise NumericalError(
            f"the draft's probabilities at node {node} of the tree are NaN, so no "
            "token can be chosen; load the draft with dtype float32 or bfloat16, or "
            "check its weights"
        )
    return mass if host_mass > 0 else None


def draft_law(tree: TokenTree, host: HostTree, node: int) -> Tensor:
    """Return the law that a node's children were drawn from, [E, V] -> [V]."""
    row = host.draft_rows[node]
    assert tree.draft_probs is not None
    assert row >= 0
    return tree.draft_probs[row]
