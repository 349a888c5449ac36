"""What tests of drafters that ask drafters share: toys, and an exact law of a text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.scripts import CPU, Text
from treespec.chance import AbstractChance
from treespec.draft import AbstractDraft
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftModel,
    DraftSetting,
    Frontier,
)
from treespec.models.table import TableModel
from treespec.policies import AbstractDraftPolicy, Growth, Situation
from treespec.testing.laws import Setting
from treespec.testing.toys import random_model, table_model
from treespec.tree import TokenTree, root_tree
from treespec.types import Budget


def toy(vocab_size: int, seed: int = 1) -> TableModel:
    return table_model(random_model(vocab_size, seed), vocab_size)


def toy_draft(vocab_size: int, seed: int = 1) -> DraftModel:
    return DraftModel(toy(vocab_size, seed))


def started(
    drafter: AbstractDrafter,
    text: Text,
    vocab_size: int = 8,
    eos_ids: Sequence[int] = (),
) -> AbstractDraftSession:
    """A session with one request, of key 0."""
    setting = DraftSetting(vocab_size, CPU, frozenset(eos_ids), 256)
    session = drafter.start(setting)
    session.admit(0, text, 64)
    return session


def asked(
    session: AbstractDraftSession,
    tree: TokenTree,
    nodes: Sequence[int],
    *,
    may_forward: bool = True,
) -> AbstractDraft:
    """What a session says about some nodes of the tree of request 0."""
    host = tree.host()
    depth = max(len(host.path(node)) for node in nodes)
    frontier = Frontier(0, tree, torch.tensor(nodes), depth, may_forward)
    (draft,) = session.expand([frontier])
    return draft


@dataclass(frozen=True, kw_only=True)
class Drafting(Setting):
    """A setting whose trees are grown by a drafter and a policy of the package."""

    drafter: AbstractDrafter
    policy: AbstractDraftPolicy
    budget: Budget

    def grow(self, text: Text, chance: AbstractChance) -> TokenTree:
        session = started(self.drafter, text, self.vocab_size)
        tree, nodes = root_tree(text[-1], self.policy.proposal, CPU), torch.tensor([0])
        for depth in range(self.budget.max_depth):
            (draft,) = session.expand([Frontier(0, tree, nodes, depth)])
            layer = self.policy.grow(
                Growth(
                    tree=tree,
                    frontier=nodes,
                    draft=draft,
                    budget=self.budget,
                    depth=depth + 1,
                    committed=text,
                    sampling=self.sampling,
                    vocab_size=self.vocab_size,
                    chance=chance,
                    situation=Situation(self.policy.init(), len(text), 64),
                    num_forwards=session.num_forwards,
                )
            )
            if layer is None:
                break
            first, tree = tree.size, tree.extend(layer, nodes)
            new = torch.arange(first, tree.size)
            nodes = new if layer.expand is None else layer.expand
            if not nodes.numel() or tree.num_drafted >= self.budget.max_nodes:
                break
        return tree
