"""From a finished step to its record: numbers only, no tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from treespec.acceptance.optimum import optimal_node_acceptance
from treespec.request import Request
from treespec.sampling import Sampling
from treespec.tree import ROOT, HostTree, TokenTree
from treespec.types import Acceptance, Budget, Forecast, NodeTrace, StepRecord

Verdict = Literal["accepted", "rejected", "unreached", "cut"]


@dataclass(frozen=True, slots=True)
class Phases:
    """Where the time of one step went.

    Attributes:
        draft_s, plan_s, verify_s, accept_s, commit_s: Seconds of the phases.
        step_s: Seconds of the whole step.
    """

    draft_s: float
    plan_s: float
    verify_s: float
    accept_s: float
    commit_s: float
    step_s: float

    def shared(self, num_requests: int) -> Phases:
        """Return one request's equal share of the seconds."""
        return Phases(
            self.draft_s / num_requests,
            self.plan_s / num_requests,
            self.verify_s / num_requests,
            self.accept_s / num_requests,
            self.commit_s / num_requests,
            self.step_s / num_requests,
        )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step did to one request.

    Attributes:
        request: The request, after the step.
        budget: What its tree was allowed to cost.
        budget_by: Who set it.
        tree: The structure of the tree.
        drafted: The tree itself.
        logits: The target's logits that the rule saw.  # [N, V]
        acceptance: What the rule decided.
        num_candidates: Nodes before pruning, root excluded.
        num_draft_forwards: Forwards of a draft model that were run for it.
        num_unread: Committed tokens that a draft model had not read before the step.
        forecast: What the policy expected of the tree, if it said.
        committed: Tokens that were committed, cut at the text's end.
        is_step: False for the prefill, which leaves no record.
    """

    request: Request
    budget: Budget
    budget_by: str
    tree: HostTree
    drafted: TokenTree
    logits: Tensor
    acceptance: Acceptance
    num_candidates: int
    num_draft_forwards: int
    num_unread: int
    forecast: Forecast | None
    committed: tuple[int, ...]
    is_step: bool


def record_step(
    outcome: StepOutcome,
    phases: Phases,
    source_names: Sequence[str],
) -> StepRecord:
    """Return the record of one request's step."""
    tree, request = outcome.tree, outcome.request
    per_depth = Counter(tree.depths())
    nodes_by_depth = tuple(per_depth[d] for d in range(1, len(per_depth)))
    kept = outcome.acceptance.node_ids[: len(outcome.committed)]
    is_whole = len(outcome.committed) > len(outcome.acceptance.node_ids)
    ranks, depths, forecast = tree.ranks(), tree.depths(), outcome.forecast
    judged = _judged(outcome)
    probs: list[float] = []
    if judged:
        probs = outcome.drafted.draft_logprobs.exp().tolist()
    return StepRecord(
        step=len(request.records),
        num_candidates=outcome.num_candidates,
        num_nodes=len(tree.tokens) - 1,
        depth=len(nodes_by_depth),
        width=max(nodes_by_depth, default=0),
        nodes_by_depth=nodes_by_depth,
        num_accepted=len(kept),
        num_committed=len(outcome.committed),
        accepted_ranks=tuple(ranks[node] for node in kept),
        accepted_sources=tuple(source_names[tree.sources[node]] for node in kept),
        next_kind=outcome.acceptance.next_kind if is_whole else None,
        num_draft_forwards=outcome.num_draft_forwards,
        draft_s=phases.draft_s,
        plan_s=phases.plan_s,
        verify_s=phases.verify_s,
        accept_s=phases.accept_s,
        commit_s=phases.commit_s,
        step_s=phases.step_s,
        max_depth=outcome.budget.max_depth,
        max_width=outcome.budget.max_width,
        max_nodes=outcome.budget.max_nodes,
        budget_by=outcome.budget_by,
        judged_sources=tuple(source_names[tree.sources[node]] for node in judged),
        judged_ranks=tuple(ranks[node] for node in judged),
        judged_depths=tuple(depths[node] for node in judged),
        judged_probs=tuple(probs[node] for node in judged),
        judged_accepted=tuple(node in kept for node in judged),
        num_unread=outcome.num_unread,
        expected_accepted=None if forecast is None else forecast.expected_accepted,
        expected_s=None if forecast is None else forecast.step_s,
        reason=None if forecast is None else forecast.reason,
    )


def _judged(outcome: StepOutcome) -> list[int]:
    """Return the nodes of which it was decided whether they are accepted.

    The children of the nodes that the committed text went through. What a stop or a
    length limit cut was not decided.
    """
    path = outcome.acceptance.node_ids
    reached = {ROOT, *path[: len(outcome.committed) - 1]}
    if len(outcome.committed) > len(path):
        reached |= set(path)
    parents = outcome.tree.parents
    return [node for node in range(1, len(parents)) if parents[node] in reached]


def trace_nodes(
    outcome: StepOutcome, sampling: Sampling, source_names: Sequence[str]
) -> list[NodeTrace]:
    """Return the trace of every node of a step's tree, once the step is recorded."""
    tree = outcome.tree
    if len(tree.tokens) == 1:
        return []
    # Nothing is asked of a leaf's law, and most nodes are leaves.
    inner = sorted(set(tree.parents[1:]))
    laws = sampling.probs(outcome.logits[inner])  # [inner nodes, V]
    row = {node: place for place, node in enumerate(inner)}
    parent_rows = [row[parent] for parent in tree.parents[1:]]
    target_probs = laws[parent_rows, tree.tokens[1:]].tolist()
    draft_probs = outcome.drafted.draft_logprobs.exp().tolist()
    depths, ranks, verdicts = tree.depths(), tree.ranks(), _verdicts(outcome)
    optima = _optima(outcome, {node: laws[row[node]] for node in inner})
    return [
        NodeTrace(
            step=len(outcome.request.records) - 1,
            node=node,
            parent=tree.parents[node],
            depth=depths[node],
            rank=ranks[node],
            token=tree.tokens[node],
            source=source_names[tree.sources[node]],
            draft_prob=draft_probs[node],
            target_prob=target_probs[node - 1],
            verdict=verdicts[node],
            optimal_acceptance=optima.get(tree.parents[node]),
        )
        for node in range(1, len(tree.tokens))
    ]


def _verdicts(outcome: StepOutcome) -> list[Verdict]:
    """Return what became of each node."""
    path = outcome.acceptance.node_ids
    reached = {0, *path}
    verdicts: list[Verdict] = [
        "rejected" if parent in reached else "unreached"
        for parent in outcome.tree.parents
    ]
    for place, node in enumerate(path):
        verdicts[node] = "accepted" if place < len(outcome.committed) else "cut"
    return verdicts


def _optima(outcome: StepOutcome, laws: Mapping[int, Tensor]) -> dict[int, float]:
    """Return the best acceptance at every evaluated node that has children.

    Only there: a large vocabulary takes tenths of a second per node.

    Args:
        outcome: The step.
        laws: The target's law at every node that has children.  # [V]
    """
    evaluated = [ROOT, *outcome.acceptance.node_ids][: len(outcome.committed)]
    return {
        node: optimal_node_acceptance(outcome.drafted, outcome.tree, node, laws[node])
        for node in evaluated
        if node in laws
    }
