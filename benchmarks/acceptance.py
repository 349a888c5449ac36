r"""Compare acceptance rules on the same trees of a real pair of models.

    python benchmarks/acceptance.py --target DIR --draft DIR --prompts prompts.jsonl

One prompt of each of the first ``--num-prompts`` categories is decoded at each
temperature with each way to draft. Every tree is then given to every rule that is
lossless for it, ``--repeats`` times with the same seeds, and decoding goes on with the
target's own draw: whatever a tree looks like, the text is the same, so that all ways
to draft meet the same text.

Prints per way to draft and rule: accepted draft tokens per step; the same against the
first rule of the group, tree by tree; how often a child of the root could be accepted
at best (1 + min over token sets H of P(H) - Q(H)), and how far below the rule stayed;
and what the rule takes. Trees are drawn, so that lucky ones may lie above the optimum.
Intervals are 95% BCa bootstraps over trees; trees of one text are not independent, so
they are a little narrow.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from treespec.acceptance import (
    AbstractAcceptanceRule,
    BlockVerification,
    ChainSpeculative,
    GreedyDraftTransport,
    KSeq,
    RejectionWithoutReplacement,
    RejectionWithReplacement,
    SampleAndMatch,
    SpecHub,
    TraversalVerification,
    TypicalAcceptance,
)
from treespec.acceptance.base import ANY_PROPOSAL
from treespec.acceptance.optimum import optimal_node_acceptance
from treespec.chance import AbstractChance, GeneratorChance
from treespec.controllers import Constant
from treespec.datasets.base import Prompt
from treespec.datasets.jsonl import JsonlDataset
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftModel
from treespec.models.loading import LoadedModel, load
from treespec.models.source import ModelSource
from treespec.policies import (
    AbstractDraftPolicy,
    SampledBestFirst,
    SampledChain,
    SampledTree,
    TopKTree,
)
from treespec.sampling import Sampling
from treespec.stats import bootstrap_interval
from treespec.tree import ROOT, TokenTree
from treespec.types import Acceptance, ProposalKind
from treespec.verifiers import TreeAttention

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
PLUS, PAIR = ProposalKind.GREEDY_PLUS_RANDOM, ProposalKind.ARGMAX_PAIR
MATCH, TRAVERSAL = SampleAndMatch(), TraversalVerification()
GROUPS: dict[str, tuple[AbstractDraftPolicy, tuple[AbstractAcceptanceRule, ...]]] = {
    "chain, sampled": (
        SampledChain(),
        (ChainSpeculative(), BlockVerification(), TRAVERSAL, MATCH),
    ),
    "tree, with replacement": (
        SampledTree(2, WITH),
        (RejectionWithReplacement(), KSeq(), TRAVERSAL, MATCH),
    ),
    "tree, without replacement": (
        SampledTree(2, WITHOUT),
        (RejectionWithoutReplacement(), TRAVERSAL, MATCH),
    ),
    "tree, best first": (
        SampledBestFirst(),
        (RejectionWithoutReplacement(), TRAVERSAL, MATCH),
    ),
    "tree, argmax pair": (
        SampledTree(2, PAIR),
        (SpecHub(), GreedyDraftTransport(), MATCH),
    ),
    "tree, greedy plus random": (
        SampledTree(2, PLUS),
        (GreedyDraftTransport(), MATCH),
    ),
    "tree, top 2": (TopKTree(2), (MATCH, TypicalAcceptance())),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What one rule did with one tree, means over the repeats.

    Attributes:
        accepted: Accepted draft tokens.
        first: How often a child of the root was accepted.
        optimum: How often that could be, at best.
        milliseconds: What the rule took.
        num_nodes: Drafted nodes.
    """

    accepted: float
    first: float
    optimum: float
    milliseconds: float
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Comparison(AbstractAcceptanceRule):
    """Gives every tree to several rules, then decodes on with a draw of the target.

    Attributes:
        rules: The rules.
        repeats: How often each decides about each tree.
        samples: What they did, by the name of the rule.
    """

    lossless = True
    greedy_only = False
    draws_like_autoregressive = True
    proposals = ANY_PROPOSAL

    rules: tuple[AbstractAcceptanceRule, ...]
    repeats: int
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        """Compare the rules on this tree."""
        if tree.num_drafted > 0:
            root_probs = sampling.probs(target_logits[ROOT])
            optimum = optimal_node_acceptance(tree, tree.host(), ROOT, root_probs)
            for rule in self.rules:
                self.samples[rule.name].append(
                    self._sample(rule, tree, target_logits, sampling, optimum)
                )
        return MATCH.accept(tree, target_logits, sampling, chance)

    def _sample(
        self,
        rule: AbstractAcceptanceRule,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        optimum: float,
    ) -> Sample:
        # The same seeds for every rule, others for every tree.
        first_seed = self.repeats * len(self.samples[rule.name])
        lengths, start = [], time.perf_counter()
        for seed in range(first_seed, first_seed + self.repeats):
            chance = GeneratorChance(torch.Generator().manual_seed(seed))
            found = rule.accept(tree, target_logits, sampling, chance)
            lengths.append(len(found.node_ids))
        elapsed = time.perf_counter() - start
        return Sample(
            accepted=float(np.mean(lengths)),
            first=float(np.mean([length > 0 for length in lengths])),
            optimum=optimum,
            milliseconds=1e3 * elapsed / self.repeats,
            num_nodes=tree.num_drafted,
        )


def main() -> None:
    """Decode, compare, print."""
    args = parse_arguments()
    torch.set_grad_enabled(False)
    target = load(ModelSource(path=args.target, dtype=args.dtype))
    draft = load(ModelSource(path=args.draft, dtype=args.dtype))
    prompts = JsonlDataset(args.prompts).load(args.num_prompts)
    print("prompts: " + ", ".join(f"{p.id} ({p.category})" for p in prompts))
    for temperature in args.temperatures:
        print(f"\ntemperature {temperature}")
        print(
            f"{'way to draft':26}{'rule':29}{'accepted/step':>22}"
            f"{'against the first':>25}{'optimum at the root':>21}"
            f"{'below it':>24}{'ms/step':>9}{'ms/node':>9}"
        )
        for name, (policy, rules) in GROUPS.items():
            comparison = Comparison(rules, args.repeats)
            decoder = SpeculativeDecoder(
                target=target.model,
                drafter=DraftModel(draft.model),
                policy=policy,
                acceptance=comparison,
                verifier=TreeAttention(),
                controller=Constant(args.depth, 2 * args.depth, args.nodes),
                eos_ids=target.eos_ids,
            )
            if isinstance(policy, SampledChain):
                controller = Constant(args.depth, 1, args.depth)
                decoder = replace(decoder, controller=controller)
            for prompt in prompts:
                decoder.generate(
                    [tokens_of(prompt, target)],
                    Sampling(temperature),
                    args.max_new_tokens,
                    seed=args.seed,
                )
            report(name, comparison)


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.6])
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args()


def tokens_of(prompt: Prompt, target: LoadedModel) -> list[int]:
    """Return the first turn in the model's chat template."""
    turn = {"role": "user", "content": prompt.turns[0]}
    return target.tokenizer.chat([turn])


def report(name: str, comparison: Comparison) -> None:
    """Print a line per rule of one way to draft."""
    samples = comparison.samples
    first = np.array([s.accepted for s in next(iter(samples.values()))])
    for rule, found in samples.items():
        accepted = np.array([s.accepted for s in found])
        steps, nodes = len(found), sum(s.num_nodes for s in found)
        total_ms = sum(s.milliseconds for s in found)
        print(
            f"{name:26}{rule:29}{mean_with_interval(accepted):>22}"
            f"{mean_with_interval(accepted - first):>25}"
            f"{np.mean([s.optimum for s in found]):21.3f}"
            f"{mean_with_interval([s.optimum - s.first for s in found]):>24}"
            f"{total_ms / steps:9.2f}{total_ms / nodes:9.2f}",
            flush=True,
        )
    print(f"{'':26}{len(first)} trees of {nodes / steps:.1f} nodes", flush=True)


def mean_with_interval(values: Sequence[float] | np.ndarray) -> str:
    """Return a mean and its interval, over trees."""
    rows = np.stack([values, np.ones(len(values))], axis=1)
    if not np.any(rows[:, 0]):
        return "0"
    rng = np.random.default_rng(0)
    found = bootstrap_interval(rows, lambda sums: sums[..., 0] / sums[..., 1], rng)
    interval = "" if found is None else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{np.mean(values):.3f}{interval}"


if __name__ == "__main__":
    main()
