"""The drafting half of a step: trees of all requests, grown layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treespec.draft import AbstractDraft
from treespec.drafters import AbstractDraftSession, Frontier
from treespec.errors import TreespecError
from treespec.policies import AbstractDraftPolicy, Growth, Situation, layer_limit
from treespec.request import Request
from treespec.sampling import Sampling
from treespec.tree import Layer, TokenTree
from treespec.types import Budget, Forecast


@dataclass(slots=True)
class RequestDraft:
    """One request's tree on its way through a step.

    Attributes:
        request: Whose it is.
        budget: What it may cost.
        budget_by: Who set the budget.
        situation: Where the request stands.
        tree: The tree; once pruned, what is left of it.
        frontier: Nodes to expand next.
        may_forward: Whether a draft model may be run for them.
        depth: Expansions so far.
        num_candidates: Nodes before pruning, root excluded.
        kept: Ids of the nodes that were left, before they were numbered anew; ``None``
            if the policy does not prune.
        num_forwards: Forwards of a draft model that it took.
        note: What the policy noted with the latest layer.
        forecast: What the policy expects of it.
    """

    request: Request
    budget: Budget
    budget_by: str
    situation: Situation
    tree: TokenTree
    frontier: Tensor
    may_forward: bool = True
    depth: int = 0
    num_candidates: int = 0
    kept: Tensor | None = None
    num_forwards: int = 0
    note: Any = None
    forecast: Forecast | None = None

    def node_ids(self, node_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids that nodes had when the tree was grown."""
        if self.kept is None or not node_ids:
            return tuple(node_ids)
        return tuple(self.kept[list(node_ids)].tolist())


@dataclass(frozen=True, slots=True)
class Drafting:
    """Grows the trees of a run's requests, side by side.

    Attributes:
        policy: What shape a tree gets.
        session: Where candidate tokens come from.
        sampling: What makes the target's law of its logits.
        vocab_size: Size of the target's vocabulary.
        eos: Ids that end a text [E]; ``None`` if there are none, or if looking for
            them would mean waiting for the device.
    """

    policy: AbstractDraftPolicy
    session: AbstractDraftSession
    sampling: Sampling
    vocab_size: int
    eos: Tensor | None

    def grow(self, drafts: Sequence[RequestDraft]) -> None:
        """Grow trees as far as budgets and policy allow, prune them, look ahead.

        Raises:
            TreespecError: The policy gave more nodes than it may, or impossible ones.
        """
        growing = [draft for draft in drafts if draft.budget.speculates]
        while growing:
            growing = self._add_layers(growing)
        for draft in drafts:
            self._prune(draft)
            self._forecast(draft)

    def _add_layers(self, growing: Sequence[RequestDraft]) -> list[RequestDraft]:
        """Add a layer to every tree; return those that may grow further."""
        before = self.session.num_forwards
        answers = self.session.expand(
            [
                Frontier(d.request.key, d.tree, d.frontier, d.depth, d.may_forward)
                for d in growing
            ]
        )
        num_forwards = self.session.num_forwards - before
        for draft in growing:
            draft.num_forwards += num_forwards if draft.may_forward else 0
        return [
            draft
            for draft, answer in zip(growing, answers, strict=True)
            if self._add_layer(draft, answer)
        ]

    def _add_layer(self, draft: RequestDraft, answer: AbstractDraft) -> bool:
        """Let the policy add a layer; return whether the tree may grow further."""
        policy, request = self.policy, draft.request
        assert request.sequence is not None
        growth = Growth(
            tree=draft.tree,
            frontier=draft.frontier,
            draft=answer,
            budget=draft.budget,
            depth=draft.depth + 1,
            committed=request.sequence.tokens,
            sampling=self.sampling,
            vocab_size=self.vocab_size,
            chance=request.draft_chance,
            situation=draft.situation,
            num_forwards=draft.num_forwards,
            note=draft.note,
        )
        layer = policy.grow(growth)
        if layer is None:
            return False
        _check_layer(policy, layer, growth)
        first = draft.tree.size
        draft.tree = draft.tree.extend(layer, draft.frontier)
        new = torch.arange(first, draft.tree.size, device=draft.frontier.device)
        draft.frontier = new if layer.expand is None else layer.expand
        draft.may_forward, draft.note = layer.may_forward, layer.note
        self._end_texts(draft, new)
        draft.depth += 1
        num_drafted = draft.tree.num_drafted
        is_full = num_drafted >= draft.budget.max_nodes and not policy.prunes
        is_deep = draft.depth >= draft.budget.max_depth
        return not (is_full or is_deep or draft.frontier.shape[0] == 0)

    def _end_texts(self, draft: RequestDraft, new: Tensor) -> None:
        """Expand no node that ends the text: nothing below it is ever committed."""
        if self.eos is None:
            return
        ended = new[torch.isin(draft.tree.tokens[new], self.eos)]
        if ended.shape[0]:
            draft.tree = draft.tree.end(ended)
            draft.frontier = draft.frontier[~draft.tree.is_expanded[draft.frontier]]

    def _prune(self, draft: RequestDraft) -> None:
        """Let a policy that prunes choose the nodes to verify."""
        policy = self.policy
        draft.num_candidates = draft.tree.num_drafted
        if not policy.prunes or not draft.num_candidates:
            return
        kept = policy.prune(draft.tree, draft.budget, draft.situation)
        if kept.shape[0] - 1 > draft.budget.max_nodes:
            raise TreespecError(
                f"{type(policy).__name__} kept {kept.shape[0] - 1} nodes where the "
                f"budget allows {draft.budget.max_nodes}; prune to that many"
            )
        draft.tree, draft.kept = draft.tree.select(kept), kept

    def _forecast(self, draft: RequestDraft) -> None:
        """Ask the policy what it expects of the tree."""
        if not draft.request.is_prefill and draft.budget.speculates:
            draft.forecast = self.policy.forecast(
                draft.tree, draft.situation, draft.num_forwards
            )


def _check_layer(policy: AbstractDraftPolicy, layer: Layer, growth: Growth) -> None:
    """Refuse nodes that are too many, and on the CPU those that do not exist."""
    limit = layer_limit(policy, growth)
    if layer.size > limit:
        raise TreespecError(
            f"{type(policy).__name__} grew a layer of {layer.size} nodes where the "
            f"budget leaves {limit}; return at most growth.room nodes"
        )
    tokens, vocab_size = layer.tokens, growth.vocab_size
    # Elsewhere than on the CPU looking at tokens would mean waiting for them.
    if layer.size == 0 or tokens.device.type != "cpu":
        return
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
        raise TreespecError(
            f"tokens from {int(tokens.min())} to {int(tokens.max())} were drafted, but "
            f"the target's vocabulary is 0 to {vocab_size - 1}; a drafter may name no "
            "others, and a policy takes tokens from growth.draft"
        )
    parents, size = layer.parents, growth.tree.size
    if not 0 <= int(parents.min()) <= int(parents.max()) < size:
        raise TreespecError(
            f"the policy gave children to nodes {parents.tolist()}, but the tree has "
            f"nodes 0 to {size - 1}; take parents from growth.frontier"
        )
