"""The tree that pays: as deep and wide as measured costs and acceptance make it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treespec.belief import Belief, BeliefMemory
from treespec.costs import Costs
from treespec.draft import Children
from treespec.errors import TreespecError, require_integer, unknown_name
from treespec.policies.base import AbstractDraftPolicy, Growth, Situation
from treespec.policies.lookahead import ASSUMED, Prices, best_prefix
from treespec.policies.plan_state import Opening, Outlook, PlanState
from treespec.policies.tree_plan import (
    Brood,
    TreePlan,
    next_expansion,
    node_ids,
    read_tree,
)
from treespec.tree import NOT_EXPANDED, ROOT, Layer, TokenTree
from treespec.types import Budget, Forecast, ProposalKind, StepRecord

OBJECTIVES = ("latency", "throughput")
REASONS = (
    "lookup",
    "draft model",
    "lookup and draft model",
    "off: the draft is too slow for this text",
    "off: reading the prompt would not pay",
    "off: nothing found",
    "off: nothing worth verifying",
)
"""All that a planner says of a tree."""


class AbstractPlanner(AbstractDraftPolicy):
    """What planners have in common: what they remember, and when a model may run.

    Attributes:
        costs: Seconds of forwards on this machine; ``None``: ``ASSUMED``, the
            shape that many machines have.
        objective: ``latency``, or ``throughput``: then a node costs what it adds to a
            forward that ``load`` requests share, each with as many nodes.
        load: Requests at once that the target serves; ``None``: those of the run.
        memory: What earlier requests taught; ``None`` keeps requests apart.
    """

    costs: Costs | None
    objective: str
    load: int | None
    memory: BeliefMemory | None

    @property
    def wants_costs(self) -> bool:
        """Whether it was given none."""
        return self.costs is None

    def init(self) -> PlanState:
        """Return what is known at the start: the priors, or what the memory holds."""
        drawn = self.proposal is not ProposalKind.DETERMINISTIC
        if self.memory is None:
            return PlanState(Belief(drawn))
        return PlanState(self.memory.start(drawn))

    def observe(self, state: PlanState, record: StepRecord) -> PlanState:
        """Return the state after a step; the memory, if there is one, learns too.

        Not from steps that may not draft, as those of a baseline with the same policy.
        """
        if self.memory is not None and record.max_depth and record.max_nodes:
            self.memory.add(record, state.belief.drawn)
        predicted_s = record.expected_s
        if predicted_s is None:
            prices = Prices(self._costs, 1.0, 0)
            predicted_s = self._costs.step_s + prices.target_s(record.num_nodes)
            predicted_s += record.num_draft_forwards * prices.draft_s(1)
        return state.observe(record, predicted_s)

    def opens(self, situation: Situation, budget: Budget) -> bool:
        """Return whether a forward of a draft model is likely to pay."""
        outlook = self.outlook(situation)
        return outlook.opening(budget.max_depth, budget.max_nodes).may_forward

    def forecast(
        self, tree: TokenTree, situation: Situation, num_forwards: int
    ) -> Forecast:
        """Return the tokens and the seconds that a tree is expected to bring."""
        outlook = self.outlook(situation)
        plan = read_tree(tree, outlook)
        prices = outlook.prices
        step_s = self._costs.step_s + prices.target_s(len(plan.values) - 1)
        if num_forwards:
            rows = max(1 + max(plan.expansions), num_forwards)
            later = -(-(rows - 1) // max(num_forwards - 1, 1))
            step_s += prices.draft_s(max(situation.num_unread, 1))
            step_s += (num_forwards - 1) * prices.draft_s(later)
        return Forecast(
            expected_accepted=sum(plan.values[1:]),
            step_s=step_s if self.costs is not None else None,
            reason=self._reason(plan, outlook, num_forwards),
        )

    def outlook(self, situation: Situation) -> Outlook:
        """Return the situation with its prices."""
        load, others = 1, situation.num_active - 1
        if self.objective == "throughput":
            load, others = self.load or situation.num_active, 0
        costs, state = self._costs, situation.state
        plain_s = Prices(costs, 0.0, situation.length, load, others).target_s(0)
        rate = state.rate(plain_s + costs.step_s)
        prices = Prices(costs, rate, situation.length, load, others)
        return Outlook(situation, state, prices)

    @property
    def _costs(self) -> Costs:
        return ASSUMED if self.costs is None else self.costs

    def _check(self) -> None:
        """Check the fields that planners have in common."""
        if self.objective not in OBJECTIVES:
            raise unknown_name(
                "value", f"policy.objective={self.objective}", OBJECTIVES
            )
        if self.load is not None:
            require_integer("policy.load", self.load, 1, ", or null")
        if not isinstance(self.memory, BeliefMemory | None):
            raise TreespecError(
                f"policy.memory must be null or a BeliefMemory, got {self.memory!r}; "
                "write policy.memory={_target_:treespec.belief.BeliefMemory}"
            )
        if not isinstance(self.costs, Costs | None):
            raise TreespecError(
                f"policy.costs must be null or measured costs, got {self.costs!r}; "
                "write policy.costs={_target_:treespec.costs.Costs.read,path:FILE}, a "
                "FILE of treespec profile, or null"
            )

    def _reason(self, plan: TreePlan, outlook: Outlook, num_forwards: int) -> str:
        kinds = {outlook.is_free(source) for source in plan.sources[1:]}
        if kinds:
            return REASONS[2] if len(kinds) == 2 else REASONS[0 if True in kinds else 1]
        if num_forwards:
            return REASONS[6]
        most = max(outlook.situation.remaining - 1, 0)
        opening = outlook.opening(min(16, most), 32)
        closed = {Opening.TOO_SLOW: REASONS[3], Opening.UNREAD: REASONS[4]}
        return closed.get(opening, REASONS[5])


@dataclass(frozen=True, slots=True)
class Planner(AbstractPlanner):
    """Drafts and verifies what is worth more tokens than its seconds could bring.

    Every node has a value, the chance that it is reached and accepted, from what the
    drafter says of it and a calibration that is learned as the text goes
    (``treespec.belief``). A plan with A expected accepted tokens that takes t seconds
    is worth ``A - rate * t``, where the rate is that of the latest steps in tokens a
    second: so a step is not made as good as it can be by itself (its own ratio of
    tokens and seconds), but as good for the steps around it: an easy step drafts on
    where a hard one stops. Only predicted seconds count, never measured ones, so the
    records give every decision again.

    After every expansion it weighs how many nodes to expand and for how many forwards
    more, then expands the best or stops; at the end it verifies the most valuable
    nodes, as many as pay. Where a model's forward does not pay, only sources without
    one are asked, and now and then the model is tried again, for at most some percent
    of the time. Reading a prompt is weighed against the tokens that are still to come.

    Attributes:
        costs, objective, load, memory: As of ``AbstractPlanner``.
        max_children: Most candidates below one node.
    """

    proposal = ProposalKind.DETERMINISTIC
    prunes = True

    costs: Costs | None = None
    objective: str = "latency"
    load: int | None = None
    max_children: int = 4
    memory: BeliefMemory | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        require_integer("policy.max_children", self.max_children, 1)
        self._check()

    def with_costs(self, costs: Costs) -> Planner:
        """Return the same planner that knows what forwards cost."""
        return replace(self, costs=costs)

    def grow(self, growth: Growth) -> Layer | None:
        """Return the best new candidates, and the nodes that are worth expanding."""
        outlook = self.outlook(growth.situation)
        children = growth.draft.top(self.max_children)
        found = _found(growth, children, outlook)
        going = next_expansion(found.plan, growth, outlook, self.prunes)
        if not found.kept and not going.nodes:
            return None
        if len(found.kept) < children.size:
            children = children.select(node_ids(found.kept, growth.tree.tokens))
        return Layer(
            parents=growth.frontier[children.rows],
            tokens=children.tokens,
            draft_logprobs=children.logprobs,
            sources=children.sources,
            expand=node_ids(going.nodes, growth.tree.tokens),
            may_forward=going.may_forward,
            note=found.plan,
        )

    def prune(
        self, tree: TokenTree, budget: Budget, situation: Situation
    ) -> Tensor:  # [K]
        """Return the most valuable nodes: as many as are worth verifying."""
        outlook = self.outlook(situation)
        values = read_tree(tree, outlook).values
        ranked = sorted(range(1, len(values)), key=lambda node: -values[node])
        prices = outlook.prices.target(min(budget.max_nodes, len(ranked)))
        size = best_prefix([values[node] for node in ranked], prices).size
        if not size and ranked and budget.max_nodes:
            # What is tried again has to be judged, or nothing would be learned.
            opening = outlook.opening(budget.max_depth, budget.max_nodes)
            size = int(opening is Opening.PROBES)
        return node_ids([ROOT, *sorted(ranked[:size])], tree.tokens)


@dataclass(frozen=True, slots=True)
class _Found:
    """What an answer brings.

    Attributes:
        plan: The tree with the best of the new candidates.
        kept: Which of them these are.
    """

    plan: TreePlan
    kept: list[int]


def _found(growth: Growth, children: Children, outlook: Outlook) -> _Found:
    """Return the tree with the best of its new candidates; waits for the device once.

    What earlier nodes are worth was noted with the layer that they came in.
    """
    tree, frontier = growth.tree, growth.frontier
    plan = growth.note
    if not isinstance(plan, TreePlan):
        plan = read_tree(tree, outlook)
    parts = (frontier, tree.draft_rows, children.rows, children.sources)
    numbers = torch.cat((*parts, children.logprobs.double())).tolist()
    parents = list(map(int, numbers[: frontier.shape[0]]))
    del numbers[: frontier.shape[0]]
    expansions = list(map(int, numbers[: tree.size]))
    for node in parents:
        expansions[node] = 0  # asked about now
    size = children.size
    rows, sources, logprobs = (
        numbers[tree.size + part * size :][:size] for part in range(3)
    )
    brood = Brood.of(outlook, len(parents))
    new = list(map(brood.chance, map(int, rows), map(int, sources), logprobs))
    values = [
        plan.values[parents[int(row)]] * chance
        for row, chance in zip(rows, new, strict=True)
    ]
    best = sorted(range(size), key=lambda child: -values[child])
    kept = sorted(best[: growth.budget.max_width])
    wider = TreePlan(
        values=[*plan.values, *(values[child] for child in kept)],
        chances=[*plan.chances, *(new[child] for child in kept)],
        sources=[*plan.sources, *(int(sources[child]) for child in kept)],
        expansions=[*expansions, *(NOT_EXPANDED for _ in kept)],
    )
    return _Found(wider, kept)
