"""Draft policies decide what shape a tree gets.

A policy grows a tree layer by layer from what the drafter says about the frontier: it
picks children, names the next frontier, and stops. It sees the budget, the committed
tokens and the draft's probabilities; it never sees the target's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treespec.chance import NO_TOKEN, AbstractChance
from treespec.costs import Costs
from treespec.draft import AbstractDraft, Children
from treespec.sampling import Sampling
from treespec.siblings import draw_siblings
from treespec.tree import Layer, TokenTree, path_logprobs
from treespec.types import Budget, Forecast, ProposalKind, StepRecord


@dataclass(frozen=True, slots=True)
class Situation:
    """Where a request stands when a step begins: numbers of the host.

    Attributes:
        state: What the policy remembers of the request.
        length: Committed tokens, the prompt's included.
        remaining: Most tokens that may still be committed.
        num_unread: Committed tokens that a draft model has not read yet; its next
            forward reads them too.
        num_active: Requests that share the step.
        source_names: Names of the drafter's sources; a node's source is an index.
        runs_model: Whether the drafter may run a draft model.
    """

    state: Any
    length: int
    remaining: int
    num_unread: int = 0
    num_active: int = 1
    source_names: tuple[str, ...] = ()
    runs_model: bool = False


@dataclass(frozen=True, slots=True)
class Growth:
    """A tree that is being grown, as its policy sees it.

    Attributes:
        tree: The tree so far.
        frontier: Ids of the nodes that the drafter was asked about.  # [F]
        draft: What it said about them, row by row.
        budget: What the whole tree may cost.
        depth: How many expansions there were, this one included: new nodes are as deep
            as that, or less if the frontier held nodes of several depths.
        committed: The committed text; its last token is the root.
        sampling: How the request samples.
        vocab_size: Size of the target's vocabulary.
        chance: The request's own source of randomness for drafting.
        situation: Where the request stood when the step began.
        num_forwards: Forwards of a draft model that the tree took so far.
        note: What the policy noted with the tree's latest layer; ``None`` for the
            first.
    """

    tree: TokenTree
    frontier: Tensor
    draft: AbstractDraft
    budget: Budget
    depth: int
    committed: Sequence[int]
    sampling: Sampling
    vocab_size: int
    chance: AbstractChance
    situation: Situation
    num_forwards: int
    note: Any = None

    @property
    def room(self) -> int:
        """Most nodes that the next layer may have, unless the policy prunes."""
        left = self.budget.max_nodes - self.tree.num_drafted
        return min(left, self.budget.max_width)


class AbstractDraftPolicy(ABC):
    """Grows token trees.

    A policy whose proposal is sampled may stop early, but it must never drop, reorder
    or replace a token that it has drawn: that would bias the output. One whose proposal
    is deterministic may do all that, for it claims no law: its layers have no
    ``draft_probs``. All draws are from ``growth.chance``.
    """

    @property
    @abstractmethod
    def proposal(self) -> ProposalKind:
        """How it draws the children of a node."""

    @property
    @abstractmethod
    def max_children(self) -> int | None:
        """Most children that it gives to one node; ``None`` if there is no limit."""

    @property
    def ends_siblings_early(self) -> bool:
        """Whether siblings drawn so far have a say in how many their parent gets.

        A policy that draws its siblings in turn may look at them before it draws one
        more; most do not, and some rules need to know the number beforehand.
        """
        return False

    @property
    def prunes(self) -> bool:
        """Whether it drafts more than it has verified, and chooses at the end.

        Then a layer may have ``budget.max_width`` nodes, however many there are
        already. For deterministic proposals only.
        """
        return False

    @property
    def whole(self) -> Budget | None:
        """The least budget that cuts nothing off its trees, if they have a shape."""
        return None

    @property
    def wants_costs(self) -> bool:
        """Whether it plans by measured costs and was not given any."""
        return False

    def with_costs(self, costs: Costs) -> AbstractDraftPolicy:
        """Return the same policy that knows what forwards cost, if it asks."""
        return self

    def init(self) -> Any:
        """Return what it remembers at the start of a request; most remember nothing."""
        return None

    def observe(self, state: Any, record: StepRecord) -> Any:
        """Return what it remembers after a step.

        A function of its arguments: the records of a request give its states again.
        """
        return state

    def opens(self, situation: Situation, budget: Budget) -> bool:
        """Return whether a draft model may be run for the children of the root.

        If not, only drafters that need no forward are asked. For later layers
        ``Layer.may_forward`` says it.
        """
        return True

    @abstractmethod
    def grow(self, growth: Growth) -> Layer | None:
        """Return the next layer, at most ``growth.room`` nodes; ``None`` to stop."""

    def forecast(
        self, tree: TokenTree, situation: Situation, num_forwards: int
    ) -> Forecast | None:
        """Return what it expects of a tree that is about to be verified, if it knows.

        Args:
            tree: The tree, pruned.
            situation: Where the request stood when the step began.
            num_forwards: Forwards of a draft model that the tree took.
        """
        return None

    def prune(
        self, tree: TokenTree, budget: Budget, situation: Situation
    ) -> Tensor:  # [K]
        """Return the nodes to verify, if it prunes; all of them, if it does not.

        Args:
            tree: The tree that was grown.
            budget: What its verification may cost.
            situation: Where the request stood when the step began.

        Returns:
            Ids in ascending order: the root, at most ``budget.max_nodes`` others, and
            with every node its parent.
        """
        return torch.arange(tree.size, device=tree.tokens.device)


def layer_limit(policy: AbstractDraftPolicy, growth: Growth) -> int:
    """Return the most nodes that a policy may add now."""
    return growth.budget.max_width if policy.prunes else growth.room


def as_layer(growth: Growth, children: Children) -> Layer | None:
    """Return the candidates as a layer, or ``None`` if there are none."""
    if children.size == 0:
        return None
    return Layer(
        parents=growth.frontier.index_select(0, children.rows),
        tokens=children.tokens,
        draft_logprobs=children.logprobs,
        sources=children.sources,
    )


def drawn_layer(
    growth: Growth, proposal: ProposalKind, num_children: int
) -> Layer | None:
    """Return drawn children of the frontier's likeliest nodes, or ``None``.

    Which nodes get children depends on their own paths, never on the tokens that are
    drawn below them: so nothing drawn is dropped, and siblings keep their joint law.

    Args:
        growth: The tree so far.
        proposal: How siblings are drawn.
        num_children: Children of one node; fewer where the budget or a law is smaller.
    """
    num_children = min(num_children, growth.room)
    rows = _likeliest_rows(growth, growth.room // num_children)
    counts = torch.full_like(rows, num_children)
    return drawn_children(growth, proposal, rows, counts, num_children)


def drawn_children(
    growth: Growth,
    proposal: ProposalKind,
    rows: Tensor,
    num_children: Tensor,
    most: int,
) -> Layer | None:
    """Return drawn children of some of the frontier's nodes, or ``None``.

    Args:
        growth: The tree so far.
        proposal: How siblings are drawn.
        rows: Which nodes of the frontier get children: known ones.  # [R]
        num_children: Children of each; fewer where a law is smaller. Must not depend
            on what is drawn. Unequal numbers need a kind whose first children do not
            depend on their number, such as with or without replacement.  # [R]
        most: The largest of these numbers.
    """
    if rows.shape[0] == 0:
        return None
    laws = growth.draft.law(growth.sampling, growth.vocab_size)
    return children_of(growth, proposal, laws, rows, num_children, most)


def children_of(
    growth: Growth,
    proposal: ProposalKind,
    laws: Tensor,
    rows: Tensor,
    num_children: Tensor,
    most: int,
) -> Layer:
    """Return drawn children, as ``drawn_children`` does, of laws that are at hand.

    Args:
        growth: The tree so far.
        proposal: How siblings are drawn.
        laws: The draft's law at every frontier node.  # [F, V]
        rows: Which nodes of the frontier get children: known ones, at least one.  # [R]
        num_children: Children of each.  # [R]
        most: The largest of these numbers.
    """
    drawn = draw_siblings(proposal, laws[rows], most, growth.chance)
    ranks = torch.arange(drawn.shape[-1], device=drawn.device)
    drawn = drawn.masked_fill(ranks >= num_children[:, None], NO_TOKEN)
    places = (drawn != NO_TOKEN).nonzero(as_tuple=True)
    parent_rows, tokens = rows[places[0]], drawn[places]
    first_draws = (~_is_repeated(drawn)[places]).nonzero().flatten()
    return Layer(
        parents=growth.frontier[parent_rows],
        tokens=tokens,
        draft_logprobs=laws[parent_rows, tokens].log(),
        sources=growth.draft.row_sources()[parent_rows],
        draft_probs=laws,
        # A token that is drawn again shares the subtree of its first draw.
        expand=growth.tree.size + first_draws,
    )


def _likeliest_rows(growth: Growth, num_rows: int) -> Tensor:  # [R]
    """Return the known rows of the frontier whose paths are likeliest, in order."""
    known = growth.draft.known_rows()
    if known.shape[0] <= num_rows:
        return known
    paths = path_logprobs(growth.tree)[growth.frontier[known]]
    best = paths.topk(num_rows).indices.sort().values
    return known[best]


def _is_repeated(drawn: Tensor) -> Tensor:  # [R, K] -> [R, K] bool
    """Return which tokens have been drawn before in their row."""
    same = drawn[:, :, None] == drawn[:, None, :]
    earlier = torch.ones_like(same).tril(diagonal=-1)
    return (same & earlier).any(dim=-1)
