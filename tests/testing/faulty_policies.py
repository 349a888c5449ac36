"""Draft policies with one mistake each."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from treespec.policies import (
    AbstractDraftPolicy,
    BestFirst,
    Growth,
    SampledBestFirst,
    Situation,
    TopKTree,
)
from treespec.policies.base import drawn_layer
from treespec.sampling import Sampling
from treespec.tree import Layer, TokenTree
from treespec.types import Budget, ProposalKind

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
Fault = Callable[[Growth, Layer], Layer]


@dataclass(frozen=True, slots=True)
class FaultyTree(AbstractDraftPolicy):
    """A sampled tree whose layers a fault changes after they are drawn.

    Attributes:
        fault: What is done to a layer.
        kind: How children are drawn before that.
        num_children: How many are drawn.
        claims: Whether the policy says so.
    """

    fault: Fault = lambda growth, layer: layer
    kind: ProposalKind = WITHOUT
    num_children: int = 2
    claims: bool = True

    max_children = None

    @property
    def proposal(self) -> ProposalKind:
        return self.kind if self.claims else ProposalKind.DETERMINISTIC

    def grow(self, growth: Growth) -> Layer | None:
        layer = drawn_layer(growth, self.kind, self.num_children)
        return None if layer is None else self.fault(growth, layer)


def select(layer: Layer, keep: list[int]) -> Layer:
    return replace(
        layer,
        parents=layer.parents[keep],
        tokens=layer.tokens[keep],
        draft_logprobs=layer.draft_logprobs[keep],
        sources=layer.sources[keep],
        expand=None,
    )


def pruned(growth: Growth, layer: Layer) -> Layer:
    """Keep the likelier half, as a tree that is pruned by value."""
    order = layer.draft_logprobs.argsort(descending=True).tolist()
    return select(layer, sorted(order[: (layer.size + 1) // 2]))


def above_threshold(growth: Growth, layer: Layer) -> Layer:
    """Drop what is less likely than a threshold."""
    return select(layer, (layer.draft_logprobs > -1.5).nonzero().flatten().tolist())


def reordered(growth: Growth, layer: Layer) -> Layer:
    """Put siblings in the order of their likelihood."""
    return select(layer, layer.draft_logprobs.argsort(descending=True).tolist())


def deduplicated(growth: Growth, layer: Layer) -> Layer:
    """Drop what was drawn before."""
    pairs = list(zip(layer.parents.tolist(), layer.tokens.tolist(), strict=True))
    return select(layer, [i for i, x in enumerate(pairs) if x not in pairs[:i]])


def rescored(growth: Growth, layer: Layer) -> Layer:
    """Score what was drawn with a sharper law."""
    assert layer.draft_probs is not None
    return with_laws(growth, layer, layer.draft_probs**2)


def other_temperature(growth: Growth, layer: Layer) -> Layer:
    """Score what was drawn at the request's temperature at another one."""
    hot = replace(growth.sampling, temperature=growth.sampling.temperature * 2)
    return with_laws(growth, layer, growth.draft.law(hot, growth.vocab_size))


def with_laws(growth: Growth, layer: Layer, laws: torch.Tensor) -> Layer:
    laws = (laws / laws.sum(dim=-1, keepdim=True)).nan_to_num()
    frontier = growth.frontier.tolist()
    rows = [frontier.index(parent) for parent in layer.parents.tolist()]
    logprobs = laws[rows, layer.tokens].log()
    return replace(layer, draft_probs=laws, draft_logprobs=logprobs)


@dataclass(frozen=True, slots=True)
class TopKAsSampled(AbstractDraftPolicy):
    """Takes the likeliest children and says that they are drawn."""

    proposal = WITHOUT
    max_children = 2

    def grow(self, growth: Growth) -> Layer | None:
        layer = TopKTree(2).grow(growth)
        if layer is None:
            return None
        laws = growth.draft.law(growth.sampling, growth.vocab_size)
        layer = with_laws(growth, layer, laws)
        return select(
            layer, layer.draft_logprobs.isfinite().nonzero().flatten().tolist()
        )


@dataclass(slots=True, eq=False)
class CountsOnSelf(AbstractDraftPolicy):
    """Grows other trees for its third request than for its first."""

    calls: list[int] = field(default_factory=list)

    proposal = ProposalKind.DETERMINISTIC
    max_children = 3

    def grow(self, growth: Growth) -> Layer | None:
        self.calls.append(growth.depth)
        return TopKTree(1 + len(self.calls) % 3).grow(growth)


@dataclass(frozen=True, slots=True)
class Wrapped(AbstractDraftPolicy):
    """A right policy in which a test puts something wrong."""

    fault: Fault

    proposal = ProposalKind.DETERMINISTIC
    max_children = 2

    def grow(self, growth: Growth) -> Layer | None:
        layer = TopKTree(2).grow(growth)
        return None if layer is None else self.fault(growth, layer)


def too_many(growth: Growth, layer: Layer) -> Layer:
    return select(layer, [i % layer.size for i in range(growth.room + 1)])


def three_children(growth: Growth, layer: Layer) -> Layer:
    return select(layer, [0] * min(3, growth.room))


def strange_parent(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, parents=layer.parents * 0)


def strange_token(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, tokens=layer.tokens + growth.vocab_size)


def strange_source(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, sources=layer.sources * 0)


def expands_twice(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, expand=torch.tensor([growth.tree.size] * 2))


def expands_nothing(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, expand=torch.tensor([growth.tree.size + layer.size]))


def probabilities(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, draft_logprobs=layer.draft_logprobs.exp())


def with_draft_probs(growth: Growth, layer: Layer) -> Layer:
    return with_laws(growth, layer, growth.draft.law(Sampling(1.0), growth.vocab_size))


def pruned_and_unclaimed(growth: Growth, layer: Layer) -> Layer:
    return replace(pruned(growth, layer), draft_probs=None)


def without_rare(growth: Growth, layer: Layer) -> Layer:
    """Drop what hardly ever occurs."""
    return select(layer, (layer.draft_logprobs > -7).nonzero().flatten().tolist())


def little_off(growth: Growth, layer: Layer) -> Layer:
    assert layer.draft_probs is not None
    laws = layer.draft_probs.clone()
    laws[:, 0] *= 1 + 1e-5
    return with_laws(growth, layer, laws)


def drawn_globally(growth: Growth, layer: Layer) -> Layer:
    assert layer.draft_probs is not None
    return drawn_again(growth, layer, layer.draft_probs.multinomial(1))


def drawn_by_itself(growth: Growth, layer: Layer) -> Layer:
    assert layer.draft_probs is not None
    own = torch.Generator()
    own.seed()
    return drawn_again(growth, layer, layer.draft_probs.multinomial(1, generator=own))


def drawn_again(growth: Growth, layer: Layer, tokens: torch.Tensor) -> Layer:
    layer = select(layer, [0])
    row = growth.frontier.tolist().index(int(layer.parents))
    layer = replace(layer, tokens=tokens[row])
    assert layer.draft_probs is not None
    return with_laws(growth, layer, layer.draft_probs)


def draws_from_nothing(growth: Growth, layer: Layer) -> Layer:
    if growth.depth == 2:
        growth.chance.draw(torch.zeros(2))
    return layer


def draws_globally(growth: Growth, layer: Layer) -> Layer:
    torch.rand(1)
    return layer


def writes_to_the_tree(growth: Growth, layer: Layer) -> Layer:
    growth.tree.draft_logprobs[0] -= 1
    return layer


def raises(growth: Growth, layer: Layer) -> Layer:
    if growth.frontier.shape[0] > 1:
        raise IndexError("one node only")
    return layer


def without_draft_probs(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, draft_probs=None)


def unnormalised(growth: Growth, layer: Layer) -> Layer:
    assert layer.draft_probs is not None
    return replace(layer, draft_probs=layer.draft_probs * 0.9)


def path_logprobs_instead(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, draft_logprobs=layer.draft_logprobs - 1)


def children_of_strangers(growth: Growth, layer: Layer) -> Layer:
    """Give children to a node that the drafter was never asked about."""
    if growth.depth == 1:
        return replace(layer, expand=torch.tensor([1]))
    return replace(layer, parents=layer.parents + 1)


def expands_an_elder_again(growth: Growth, layer: Layer) -> Layer:
    return replace(layer, expand=torch.tensor([growth.depth - 1 or 1]))


@dataclass(frozen=True, slots=True)
class FaultyBestFirst(AbstractDraftPolicy):
    """A dynamic sampled tree whose layers a fault changes after they are drawn."""

    fault: Fault = lambda growth, layer: layer

    proposal = WITHOUT
    max_children = None
    ends_siblings_early = True

    def grow(self, growth: Growth) -> Layer | None:
        layer = SampledBestFirst(threshold=2.0).grow(growth)
        return None if layer is None else self.fault(growth, layer)


def drops_unlikely(growth: Growth, layer: Layer) -> Layer:
    """Drop what is not worth a node, now that it is known."""
    keep = (layer.draft_logprobs > -1.5).nonzero().flatten().tolist()
    assert layer.expand is not None
    places = {growth.tree.size + old: new for new, old in enumerate(keep)}
    expand = [places[node] for node in layer.expand.tolist() if node in places]
    return replace(
        select(layer, keep), expand=growth.tree.size + torch.tensor(expand).long()
    )


def redraws(growth: Growth, layer: Layer) -> Layer:
    """Give an unlikely token a second chance to be a likely one."""
    return drawn_anew(growth, layer, layer.draft_logprobs < -1.5)


def forgets_elders(growth: Growth, layer: Layer) -> Layer:
    """Draw later siblings from the whole law, as if there were no earlier ones."""
    return drawn_anew(growth, layer, ~torch.isin(layer.parents, growth.frontier))


def drawn_anew(growth: Growth, layer: Layer, which: torch.Tensor) -> Layer:
    tokens, logprobs = layer.tokens.clone(), layer.draft_logprobs.clone()
    tree = growth.tree.extend(layer, growth.frontier)
    assert tree.draft_probs is not None
    for place in which.nonzero().flatten().tolist():
        law = tree.draft_probs[tree.draft_rows[layer.parents[place]]]
        tokens[place] = growth.chance.draw(law)
        logprobs[place] = law[tokens[place]].log()
    return replace(layer, tokens=tokens, draft_logprobs=logprobs)


Keep = Callable[[torch.Tensor, TokenTree], torch.Tensor]


@dataclass(frozen=True, slots=True)
class FaultyPruning(AbstractDraftPolicy):
    """A search that leaves what a fault makes of the best nodes."""

    fault: Keep

    proposal = ProposalKind.DETERMINISTIC
    max_children = 2
    prunes = True

    def grow(self, growth: Growth) -> Layer | None:
        return BestFirst(2).grow(growth)

    def prune(
        self, tree: TokenTree, budget: Budget, situation: Situation
    ) -> torch.Tensor:
        return self.fault(BestFirst(2).prune(tree, budget, situation), tree)


def drops_a_parent(kept: torch.Tensor, tree: TokenTree) -> torch.Tensor:
    parents = set(tree.parents[kept].tolist())
    ids = kept.tolist()
    dropped = next((node for node in ids if node and node in parents), None)
    return torch.tensor([node for node in ids if node != dropped])


def keeps_all(kept: torch.Tensor, tree: TokenTree) -> torch.Tensor:
    return torch.arange(tree.size)


def drops_the_root(kept: torch.Tensor, tree: TokenTree) -> torch.Tensor:
    return kept[1:]


def best_first_order(kept: torch.Tensor, tree: TokenTree) -> torch.Tensor:
    return kept.flip(0)


def keeps_a_mask(kept: torch.Tensor, tree: TokenTree) -> torch.Tensor:
    return torch.ones(tree.size, dtype=torch.bool)


class PrunesWhatItDrew(FaultyTree):
    prunes = True
