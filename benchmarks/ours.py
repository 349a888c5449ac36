"""The ways of treespec to decode, for ``planner.py``."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from treespec.acceptance import (
    AbstractAcceptanceRule,
    Greedy,
    RejectionWithoutReplacement,
    SampleAndMatch,
)
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    EarlyExit,
    PromptLookup,
    TokenRecycling,
    all_sources,
)
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.loading import load
from treespec.models.source import ModelSource
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Chain,
    Planner,
    SampledPlanner,
    TopKTree,
)
from treespec.sampling import Sampling
from treespec.timings import measure_costs
from treespec.verifiers import TreeAttention

LOOKUP = PromptLookup(max_ngram=64, min_ngram=2)
RECYCLING = TokenRecycling()
MODEL_FREE = Cascade((LOOKUP, RECYCLING), min_confidence=(0.5,))
BEST_FIRST = BestFirst(3, beam=3)
TREE = Constant(max_depth=8, max_width=9, max_nodes=8)
LIMITS = Constant(max_depth=16, max_width=8, max_nodes=32)
MIN_GAIN = 0.4
NUM_NODES = 8
CONTEXT = 128
"""Tokens of a text that the planners' draft reads at once, as conf has it."""


@dataclass(frozen=True, slots=True)
class Ours:
    """Models as treespec holds them.

    Attributes:
        target: The target.
        draft: The draft in int8, if there is one.
        stored_draft: Where it is, as it is stored.
        eos_ids: Ids that end a text.
        sampling: How tokens are chosen.
    """

    target: HuggingFaceModel
    draft: HuggingFaceModel | None
    stored_draft: ModelSource | None
    eos_ids: frozenset[int]
    sampling: Sampling

    def drafts(self, kind: str | None) -> DraftModel:
        """Return the draft model as a drafter: as it is stored, or in int8."""
        if self.draft is None or self.stored_draft is None:
            raise SystemExit("this method needs --draft")
        model = self.draft if kind is None else _read_draft(self.stored_draft)
        return DraftModel(model)


@cache
def _read_draft(source: ModelSource) -> HuggingFaceModel:
    return load(source, exact=False).model


def load_ours(target: str, draft: str | None, dtype: str, temperature: float) -> Ours:
    """Read the models from their folders."""
    loaded, small, stored = load(ModelSource(path=target, dtype=dtype)), None, None
    if draft is not None:
        stored = ModelSource(path=draft, dtype=dtype)
        small = load(replace(stored, quantization="int8"), exact=False).model
    return Ours(loaded.model, small, stored, loaded.eos_ids, Sampling(temperature))


@dataclass(frozen=True, slots=True)
class Strategy:
    """How to draft, how much, and which rule decides if not the usual one."""

    drafter: AbstractDrafter
    policy: AbstractDraftPolicy
    limits: Constant
    acceptance: AbstractAcceptanceRule | None = None


def autoregressive(models: Ours) -> Strategy:
    """Return no speculation."""
    return Strategy(LOOKUP, Chain(), Constant(max_depth=0, max_nodes=0))


def chain(models: Ours, kind: str | None, depth: str) -> Strategy:
    """Return a chain of the draft model."""
    limits = Constant(int(depth), 1, int(depth))
    return Strategy(models.drafts(kind), Chain(), limits)


def top_k(
    models: Ours, kind: str | None, width: str, depth: str, nodes: str
) -> Strategy:
    """Return a tree of the draft model's likeliest children, layer by layer."""
    limits = Constant(int(depth), int(width), int(nodes))
    return Strategy(models.drafts(kind), TopKTree(int(width)), limits)


def tree(
    models: Ours, kind: str | None, width: str, depth: str, nodes: str | None
) -> Strategy:
    """Return the likeliest nodes of the draft model."""
    num_nodes = int(nodes or NUM_NODES)
    return best_first(models.drafts(kind), int(width), int(depth), num_nodes)


def lookup_then_model(
    models: Ours, kind: str | None, width: str, depth: str, nodes: str | None
) -> Strategy:
    """Return copies where a match is good, the draft model's nodes elsewhere."""
    drafter = Cascade((LOOKUP, models.drafts(kind)), min_confidence=(0.5,))
    return best_first(drafter, int(width), int(depth), int(nodes or NUM_NODES))


def early_exit(models: Ours, exit_layer: str, depth: str) -> Strategy:
    """Return a chain of the target's lower layers."""
    limits = Constant(int(depth), 1, int(depth))
    return Strategy(EarlyExit(models.target, int(exit_layer)), Chain(), limits)


def best_first(
    drafter: AbstractDrafter, width: int, depth: int, num_nodes: int
) -> Strategy:
    """Return the likeliest nodes of a drafter that may run a model."""
    policy = BestFirst(width, beam=width, min_gain=MIN_GAIN)
    return Strategy(drafter, policy, Constant(depth, width * width, num_nodes))


def lookup(models: Ours) -> Strategy:
    """Return copies of the text."""
    return Strategy(LOOKUP, BEST_FIRST, TREE)


def recycling(models: Ours) -> Strategy:
    """Return earlier runners-up of the target."""
    return Strategy(RECYCLING, BEST_FIRST, TREE)


def lookup_then_recycling(models: Ours) -> Strategy:
    """Return copies where a match is good, runners-up elsewhere."""
    return Strategy(MODEL_FREE, BEST_FIRST, TREE)


@cache
def costs_of(models: Ours) -> Costs:
    """Measure what forwards cost, once."""
    strategy = Strategy(all_sources(models.draft), Chain(), LIMITS)
    start = time.perf_counter()
    costs = measure_costs(decoder_of(strategy, models))
    print(f"costs were measured in {time.perf_counter() - start:.0f} s", flush=True)
    return costs


def planner(models: Ours, context: str | None) -> Strategy:
    """Return the planner with all sources; the draft may read the last tokens only."""
    drafter = all_sources(models.draft, CONTEXT if context is None else int(context))
    return Strategy(drafter, Planner(costs=costs_of(models)), LIMITS)


def planner_no_model(models: Ours) -> Strategy:
    """Return the planner without the draft model."""
    return Strategy(MODEL_FREE, Planner(costs=costs_of(models)), LIMITS)


def sampled_planner(models: Ours) -> Strategy:
    """Return the planner whose draft tokens are drawn, and the rule for those."""
    policy, rule = SampledPlanner(costs=costs_of(models)), RejectionWithoutReplacement()
    return Strategy(all_sources(models.draft, CONTEXT), policy, LIMITS, rule)


OURS: dict[str, Callable[..., Strategy]] = {
    r"autoregressive": autoregressive,
    r"(bf16_)?chain_(\d+)": chain,
    r"(bf16_)?top_k_(\d+)x(\d+)_(\d+)": top_k,
    r"(bf16_)?tree_(\d+)x(\d+)(?:_(\d+))?": tree,
    r"early_exit_(\d+)_chain_(\d+)": early_exit,
    r"lookup": lookup,
    r"recycling": recycling,
    r"lookup_then_recycling": lookup_then_recycling,
    r"planner(?:_context_(\d+))?": planner,
    r"planner_no_model": planner_no_model,
    r"sampled_planner": sampled_planner,
    r"(bf16_)?lookup_then_model_(\d+)x(\d+)(?:_(\d+))?": lookup_then_model,
}
"""Builders by pattern of the method's name, whose groups are their arguments."""


def is_ours(name: str) -> bool:
    """Return whether a method of this name is one of ours."""
    return any(re.fullmatch(pattern, name) for pattern in OURS)


def ours(name: str, models: Ours) -> SpeculativeDecoder:
    """Return the decoder of one of our methods."""
    for pattern, build in OURS.items():
        if found := re.fullmatch(pattern, name):
            strategy = build(models, *found.groups())
            return decoder_of(strategy, models)
    raise AssertionError(name)


def decoder_of(strategy: Strategy, models: Ours) -> SpeculativeDecoder:
    """Return the decoder that follows a strategy."""
    usual = Greedy() if models.sampling.greedy else SampleAndMatch()
    return SpeculativeDecoder(
        target=models.target,
        drafter=strategy.drafter,
        policy=strategy.policy,
        acceptance=strategy.acceptance or usual,
        verifier=TreeAttention(),
        controller=strategy.limits,
        eos_ids=models.eos_ids,
    )
