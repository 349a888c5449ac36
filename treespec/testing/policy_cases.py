"""The drafts and budgets on which a draft policy is tried, and how a tree is grown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.chance import AbstractChance
from treespec.draft import AbstractDraft, Children, DenseDraft, SparseDraft
from treespec.policies import AbstractDraftPolicy, Growth, Situation
from treespec.sampling import Sampling
from treespec.testing.drawing import describe, draw_tree
from treespec.testing.failure import ConformanceError, told
from treespec.testing.laws import CPU, PLAIN, node_texts
from treespec.testing.purity import snapshot
from treespec.testing.toys import Model, Text, constant_model, random_model
from treespec.tree import ROOT, Layer, TokenTree, root_tree
from treespec.types import Budget

SOURCE = 2
"""The source that all candidates of the toys are from."""
PROCESSED = Sampling(0.7, top_k=2)
TEXT: Text = (0, 1)
REMAINING = 64
"""Tokens that a request may still commit: more than any tree is deep."""


@dataclass(frozen=True, slots=True)
class GrownTree:
    """A tree, and when its nodes were added.

    Attributes:
        tree: The tree, as it would be verified.
        layers: Expansion after which each node was added, from 1; 0 for the root.
    """

    tree: TokenTree
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """A draft and a budget.

    Attributes:
        draft: The draft model.
        vocab_size: Its tokens.
        budget: What a tree may cost.
        sampling: The request's.
        known: Whether the draft knows anything after a text; ``None`` if it always
            knows a whole law, as a draft model does.
    """

    draft: Model
    vocab_size: int
    budget: Budget
    sampling: Sampling = PLAIN
    known: Callable[[Text], bool] | None = None

    def __str__(self) -> str:
        budget = self.budget
        knows = "" if self.known is None else ", a draft that does not know all nodes"
        return (
            f"{self.vocab_size} tokens, {describe(self.sampling)}, max_depth "
            f"{budget.max_depth}, max_width {budget.max_width}, max_nodes "
            f"{budget.max_nodes}{knows}"
        )

    def answer(self, tree: TokenTree, frontier: list[int]) -> AbstractDraft:
        """Return what the drafter says about nodes of a tree."""
        every = node_texts(tree, TEXT)
        texts = [every[node] for node in frontier]
        if self.known is None:
            return DenseDraft(torch.stack([self.draft(t) for t in texts]), SOURCE)
        return _sparse(self.draft, texts, self.known)

    def grow(
        self, policy: AbstractDraftPolicy, chance: AbstractChance
    ) -> Iterator[tuple[Growth, Layer]]:
        """Grow a tree as a decoder does; yield every layer with what it was made from.

        Raises:
            ConformanceError: The policy failed; shows the tree so far.
        """
        tree = root_tree(TEXT[-1], policy.proposal, CPU)
        frontier = torch.tensor([ROOT])
        for depth in range(1, self.budget.max_depth + 1):
            is_full = tree.num_drafted >= self.budget.max_nodes and not policy.prunes
            if not frontier.numel() or is_full:
                return
            growth = Growth(
                tree=tree,
                frontier=frontier,
                draft=self.answer(tree, frontier.tolist()),
                budget=self.budget,
                depth=depth,
                committed=list(TEXT),
                sampling=self.sampling,
                vocab_size=self.vocab_size,
                chance=chance,
                situation=situation(policy),
                num_forwards=depth,
            )
            layer = self._next_layer(policy, growth)
            if layer is None:
                return
            yield growth, layer
            first, tree = tree.size, tree.extend(layer, frontier)
            new = torch.arange(first, tree.size)
            frontier = new if layer.expand is None else layer.expand

    def _next_layer(self, policy: AbstractDraftPolicy, growth: Growth) -> Layer | None:
        growth.tree.path_logprobs()  # what a tree keeps of that is no change
        before, name = snapshot(growth.tree), type(policy).__name__
        try:
            layer = policy.grow(growth)
        except Exception as error:
            kits = isinstance(error, ConformanceError)
            says = f": {error}" if kits else f" raised {told(error)}"
            raise ConformanceError(
                f"{name}{says}\n{self}\n{draw_tree(growth.tree)}"
            ) from error
        if snapshot(growth.tree) != before:
            raise ConformanceError(
                f"{name} writes to growth.tree, which others still "
                f"read; return a Layer instead\n{self}\n{draw_tree(growth.tree)}"
            )
        return layer

    def tree(self, policy: AbstractDraftPolicy, chance: AbstractChance) -> TokenTree:
        """Return a grown tree, as it would be verified."""
        return self.grown(policy, chance).tree

    def grown(self, policy: AbstractDraftPolicy, chance: AbstractChance) -> GrownTree:
        """Return a grown tree, as it would be verified, and when its nodes came."""
        tree, layers = root_tree(TEXT[-1], policy.proposal, CPU), [0]
        for growth, layer in self.grow(policy, chance):
            tree = growth.tree.extend(layer, growth.frontier)
            layers += [growth.depth] * layer.size
        kept = self.kept(policy, tree)
        return GrownTree(tree.select(kept), tuple(layers[i] for i in kept.tolist()))

    def kept(self, policy: AbstractDraftPolicy, tree: TokenTree) -> Tensor:  # [K]
        """Return the nodes that a policy leaves of a tree.

        Raises:
            ConformanceError: What it leaves is no tree, or too much.
        """
        kept = policy.prune(tree, self.budget, situation(policy))
        if fault := self._fault_of(kept, tree):
            raise ConformanceError(
                f"{type(policy).__name__}.prune {fault}, got {kept}\n{self}\n"
                f"{draw_tree(tree)}"
            )
        return kept

    def _fault_of(self, kept: object, tree: TokenTree) -> str | None:
        """Return what is wrong with the nodes that a policy keeps, or ``None``."""
        if not isinstance(kept, Tensor) or kept.dtype != torch.int64 or kept.dim() != 1:
            return "must return the ids of the nodes to verify, int64"
        ids = kept.tolist()
        if ids != sorted(set(ids)) or not set(ids) <= set(range(tree.size)):
            return "must return ids of the tree, ascending, none of them twice"
        parents = tree.parents.tolist()
        if ROOT not in ids or any(parents[i] not in ids for i in ids if i != ROOT):
            return "must keep the root, and with every node its parent"
        if len(ids) - 1 > self.budget.max_nodes:
            return f"must keep at most {self.budget.max_nodes} nodes besides the root"
        return None


def situation(policy: AbstractDraftPolicy) -> Situation:
    """Return where a request stands that has just begun."""
    return Situation(policy.init(), length=len(TEXT), remaining=REMAINING)


def _sparse(
    draft: Model, texts: list[Text], known: Callable[[Text], bool]
) -> SparseDraft:
    """Return the two likeliest tokens after every text that the draft knows."""
    rows, tokens, logprobs = [], [], []
    for row, text in enumerate(texts):
        if known(text):
            best = draft(text).log_softmax(dim=-1).topk(2)
            rows += [row, row]
            tokens += best.indices.tolist()
            logprobs += best.values.tolist()
    return SparseDraft(
        Children(
            torch.tensor(rows, dtype=torch.int64),
            torch.tensor(tokens, dtype=torch.int64),
            torch.tensor(logprobs, dtype=torch.float64),
            torch.full((len(rows),), SOURCE),
        ),
        len(texts),
    )


def _nothing(text: Text) -> bool:
    return False


def _even(text: Text) -> bool:
    return sum(text) % 2 == 1


BUDGETS = [
    Budget(max_depth, max_width, max_nodes)
    for max_depth in (1, 3)
    for max_width, max_nodes in ((1, 1), (1, 4), (2, 3), (3, 2), (3, 4), (5, 9))
]
SMALL_VOCABULARY = constant_model(0.6, 0.4, 0.0, 0.0)
CERTAIN = constant_model(0.0, 1.0, 0.0, 0.0)
NEARLY_CERTAIN = constant_model(0.0003, 0.9995, 0.0002)


def contract_cases() -> list[PolicyCase]:
    """Return the cases in which every single layer is looked at, smallest first."""
    model = random_model(4, seed=2)
    return sorted(
        (
            PolicyCase(draft, 4, budget, sampling, known)
            for budget in BUDGETS
            for draft, sampling, known in (
                (model, PLAIN, None),
                (model, Sampling(), None),
                (SMALL_VOCABULARY, PROCESSED, None),
                (CERTAIN, PLAIN, None),
                (model, PLAIN, _nothing),
                (model, PLAIN, _even),
            )
        ),
        key=lambda case: (case.budget.most_nodes, case.budget.max_depth),
    )


def law_cases() -> list[PolicyCase]:
    """Return the cases whose every outcome is looked at, smallest first."""
    shapes = (
        (Budget(1, 1, 1), 4),
        (Budget(1, 2, 2), 4),
        (Budget(1, 3, 3), 3),
        (Budget(2, 1, 2), 3),
        (Budget(2, 2, 3), 3),
        (Budget(2, 2, 4), 2),
        (Budget(2, 3, 4), 3),
        (Budget(3, 2, 5), 2),
    )
    return [
        *(
            PolicyCase(random_model(size, seed=2, spread=1.0), size, budget, sampling)
            for budget, size in shapes
            for sampling in (PLAIN, PROCESSED)
        ),
        PolicyCase(NEARLY_CERTAIN, 3, Budget(1, 2, 2)),
    ]
