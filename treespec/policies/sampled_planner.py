"""The drawn tree that pays, for rules that look at the draft's law."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.belief import LARGEST, BeliefMemory
from treespec.costs import Costs
from treespec.errors import require_integer, unknown_name
from treespec.policies.base import Growth, children_of
from treespec.policies.lookahead import best_prefix
from treespec.policies.plan_state import Opening, Outlook
from treespec.policies.planner import AbstractPlanner
from treespec.policies.tree_plan import (
    TreePlan,
    next_expansion,
    node_ids,
    prices_beyond,
    read_tree,
)
from treespec.tree import ENDED, Layer, TokenTree
from treespec.types import ProposalKind

PROPOSALS = ("with_replacement", "without_replacement")


@dataclass(frozen=True, slots=True)
class SampledPlanner(AbstractPlanner):
    """Draws children where they are worth more tokens than their seconds could bring.

    As ``Planner``, with what keeps the text's law: how many children a node gets is
    decided before the first is drawn, from its own path and from its law; whether a
    node is expanded is decided from its path, its own token included; and what is
    drawn is verified. A child's chance to be accepted is calibrated by the probability
    that it was drawn with; before it is drawn, by the probability that a draw has on
    average.

    Attributes:
        proposal: ``with_replacement`` or ``without_replacement``.
        costs, objective, load, memory: As of ``AbstractPlanner``.
        max_children: Most children of one node; 1 draws chains.
    """

    proposal: ProposalKind = ProposalKind.WITHOUT_REPLACEMENT
    costs: Costs | None = None
    objective: str = "latency"
    load: int | None = None
    max_children: int = 3
    memory: BeliefMemory | None = None

    def __post_init__(self) -> None:
        """Check the fields; a name becomes a kind of proposal."""
        if self.proposal not in PROPOSALS:
            raise unknown_name("value", f"policy.proposal={self.proposal}", PROPOSALS)
        object.__setattr__(self, "proposal", ProposalKind(self.proposal))
        require_integer("policy.max_children", self.max_children, 1)
        self._check()

    def with_costs(self, costs: Costs) -> SampledPlanner:
        """Return the same planner that knows what forwards cost."""
        return replace(self, costs=costs)

    def grow(self, growth: Growth) -> Layer | None:
        """Return children of the nodes where they are worth verifying."""
        outlook = self.outlook(growth.situation)
        laws = growth.draft.law(growth.sampling, growth.vocab_size)
        rows, counts = self._counts(growth, laws, outlook)
        if not rows:
            return None
        layer = children_of(
            growth,
            self.proposal,
            laws,
            node_ids(rows, growth.tree.tokens),
            node_ids(counts, growth.tree.tokens),
            max(counts),
        )
        # The laws are not looked at, and they are large.
        slim = replace(layer, draft_probs=None)
        tree = growth.tree.extend(slim, growth.frontier)
        plan = _without_repeats(read_tree(tree, outlook), tree)
        going = next_expansion(plan, growth, outlook, self.prunes)
        return replace(
            layer,
            expand=node_ids(going.nodes, tree.tokens),
            may_forward=going.may_forward,
        )

    def _counts(
        self, growth: Growth, laws: Tensor, outlook: Outlook
    ) -> tuple[list[int], list[int]]:
        """Return which nodes of the frontier get children, and how many each."""
        slots = self._slots(growth, laws, outlook)
        num_drafted = growth.tree.num_drafted
        most = min(growth.room, len(slots))
        prices = outlook.prices.target(num_drafted + most)
        values = [value for value, _ in slots]
        size = best_prefix(values, prices_beyond(prices, num_drafted)).size
        if not size and most and growth.depth == 1:
            # What is tried again has to be judged, or nothing would be learned.
            budget = growth.budget
            opening = outlook.opening(budget.max_depth, budget.max_nodes)
            size = int(opening is Opening.PROBES)
        chosen = [row for _, row in slots[:size]]
        rows = sorted(set(chosen))
        return rows, [chosen.count(row) for row in rows]

    def _slots(
        self, growth: Growth, laws: Tensor, outlook: Outlook
    ) -> list[tuple[float, int]]:
        """Return value and row of all children that may be drawn, best first.

        The value is what a child is worth on average before it is drawn.
        """
        known = growth.draft.known_rows()
        if known.shape[0] == 0:
            return []
        purity = laws[known].square().sum(dim=-1)
        sources = growth.draft.row_sources()[known]
        numbers = torch.stack((known.float(), sources.float(), purity)).tolist()
        plan, frontier = read_tree(growth.tree, outlook), growth.frontier.tolist()
        slots = []
        for row, source, prob in zip(*numbers, strict=True):
            name, left = outlook.source_name(int(source)), LARGEST
            value, before = plan.values[frontier[int(row)]], LARGEST
            for rank in range(self.max_children):
                chance = outlook.state.belief.chance(name, prob, rank)
                before = min(chance, before, left)
                left -= before
                slots.append((value * before, int(row)))
        # Equal ones in order, so that a node's next child is never before its last.
        return sorted(slots, key=lambda slot: -slot[0])


def _without_repeats(plan: TreePlan, tree: TokenTree) -> TreePlan:
    """Return the plan with repeated draws closed: their first draw stands for them."""
    pairs = torch.stack((tree.parents, tree.tokens)).tolist()
    seen: set[tuple[int, int]] = set()
    expansions = list(plan.expansions)
    for node, pair in enumerate(zip(*pairs, strict=True)):
        if pair in seen:
            expansions[node] = ENDED
        seen.add(pair)
    return replace(plan, expansions=expansions)
