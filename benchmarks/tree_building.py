"""Time what draft policies do by themselves, and what reading a vocabulary takes.

    python benchmarks/tree_building.py

One CPU thread, a vocabulary of 151,936 tokens, trees of 256 nodes, frontiers of 1 to 32
nodes. The drafter is made up. First what ranking the whole vocabulary takes for a
frontier, as ``DenseDraft.top`` does it and as ``topk`` and ``logsumexp`` alone would.
Then a tree's growth without that: every answer was given before, and ranked. Medians,
in milliseconds of the processor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treespec.chance import GeneratorChance
from treespec.draft import AbstractDraft, Children, DenseDraft
from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    ConfidenceTree,
    Growth,
    Situation,
    TopKTree,
)
from treespec.sampling import Sampling
from treespec.tree import ROOT, TokenTree, root_tree
from treespec.types import Budget

VOCAB_SIZE = 151_936
NUM_NODES = 256
NUM_CHILDREN = 8
WIDTHS = (1, 2, 4, 8, 16, 32)
REPEATS = 9
SAMPLING = Sampling()
SITUATION = Situation(None, length=1, remaining=1024)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranked(AbstractDraft):
    """A draft whose best children have been found before."""

    best: Children
    num_rows: int

    def top(self, k: int) -> Children:
        """Return the best children."""
        assert k == NUM_CHILDREN
        return self.best

    def law(self, sampling: Sampling, vocab_size: int) -> Tensor:
        """Refuse: nothing is drawn here."""
        raise NotImplementedError

    def known_rows(self) -> Tensor:
        """Return all rows."""
        return torch.arange(self.num_rows)

    def row_sources(self) -> Tensor:
        """Return the one source."""
        return self.known_rows() * 0


@dataclass(frozen=True)
class Drafter:
    """Knows the best children of ``NUM_NODES`` nodes by heart."""

    tokens: Tensor  # [N, K]
    logprobs: Tensor  # [N, K]

    def ask(self, frontier: Tensor) -> Ranked:
        """Return an answer for every node."""
        known = frontier % self.tokens.shape[0]
        tokens, logprobs = self.tokens[known].flatten(), self.logprobs[known].flatten()
        rows = torch.arange(known.shape[0]).repeat_interleave(NUM_CHILDREN)
        return Ranked(Children(rows, tokens, logprobs, rows * 0), known.shape[0])


@dataclass(frozen=True)
class Answered:
    """Gives the answers of a tree once more, without looking at what it is asked."""

    answers: Iterator[Ranked]

    def ask(self, frontier: Tensor) -> Ranked:
        """Return the next answer."""
        return next(self.answers)


@dataclass(frozen=True)
class Listening:
    """Keeps what another drafter answers."""

    drafter: Drafter
    answers: list[Ranked] = field(default_factory=list)

    def ask(self, frontier: Tensor) -> Ranked:
        """Return its answer."""
        self.answers.append(self.drafter.ask(frontier))
        return self.answers[-1]


def main() -> None:
    """Print both tables."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(max(WIDTHS), VOCAB_SIZE, generator=generator)
    print(f"ranking the vocabulary: {NUM_CHILDREN} children of every node, ms")
    print(f"{'nodes':>8}{'top':>8}{'topk':>8}{'logsumexp':>11}")
    for width in WIDTHS:
        rows = logits[:width]
        top = milliseconds(lambda rows=rows: DenseDraft(rows).top(NUM_CHILDREN))
        topk = milliseconds(lambda rows=rows: rows.topk(NUM_CHILDREN, dim=-1))
        mass = milliseconds(lambda rows=rows: rows.logsumexp(dim=-1))
        print(f"{width:8d}{top:8.2f}{topk:8.2f}{mass:11.2f}")

    best = DenseDraft(3 * torch.randn(NUM_NODES, 2000, generator=generator)).top(
        NUM_CHILDREN
    )
    drafter = Drafter(
        best.tokens.view(NUM_NODES, -1), best.logprobs.view(NUM_NODES, -1)
    )
    print(f"\na tree of {NUM_NODES} nodes, ranking apart: ms (draft forwards)")
    names = ("TopKTree", "ConfidenceTree", "BestFirst layer", "BestFirst tree")
    print(f"{'nodes':>8}" + "".join(f"{name:>18}" for name in names))
    for width in WIDTHS:
        cells = []
        for policy, budget in policies(width):
            listening = Listening(drafter)
            num_forwards, tree = grow(policy, budget, listening)
            assert tree.num_drafted == NUM_NODES
            took = growth_milliseconds(policy, budget, listening.answers)
            cells.append(f"{took:.2f} ({num_forwards})")
        print(f"{width:8d}" + "".join(f"{cell:>18}" for cell in cells))


def policies(width: int) -> list[tuple[AbstractDraftPolicy, Budget]]:
    """Return policies that expand this many nodes at once, and their budgets."""
    narrow = Budget(NUM_NODES, width, NUM_NODES)
    wide = Budget(NUM_NODES, NUM_NODES, NUM_NODES)
    return [
        (TopKTree(NUM_CHILDREN), narrow),
        (ConfidenceTree(NUM_CHILDREN, ratio=0.0), narrow),
        (BestFirst(NUM_CHILDREN, width, "layer"), wide),
        (BestFirst(NUM_CHILDREN, width, "tree"), wide),
    ]


def growth_milliseconds(
    policy: AbstractDraftPolicy, budget: Budget, answers: Sequence[Ranked]
) -> float:
    """Return what it takes to grow a tree from answers that are there."""
    return milliseconds(lambda: grow(policy, budget, Answered(iter(answers))))


def grow(
    policy: AbstractDraftPolicy,
    budget: Budget,
    drafter: Drafter | Answered | Listening,
) -> tuple[int, TokenTree]:
    """Grow and prune a tree as a decoder does; return how often the draft was asked."""
    tree = root_tree(0, policy.proposal, CPU)
    frontier, chance = torch.tensor([ROOT]), GeneratorChance(torch.Generator())
    for depth in range(1, budget.max_depth + 1):
        growth = Growth(
            tree=tree,
            frontier=frontier,
            draft=drafter.ask(frontier),
            budget=budget,
            depth=depth,
            committed=(0,),
            sampling=SAMPLING,
            vocab_size=VOCAB_SIZE,
            chance=chance,
            situation=SITUATION,
            num_forwards=depth,
        )
        layer = policy.grow(growth)
        if layer is None:
            break
        first, tree = tree.size, tree.extend(layer, frontier)
        new = torch.arange(first, tree.size)
        frontier = new if layer.expand is None else layer.expand
        is_full = tree.num_drafted >= budget.max_nodes and not policy.prunes
        if is_full or frontier.shape[0] == 0:
            break
    if policy.prunes:
        tree = tree.select(policy.prune(tree, budget, SITUATION))
    return depth, tree


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median time of a piece of work, after one run to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main()
