"""The exact law of the text that an acceptance rule writes, on toys.

Trees are grown by ``Setting.grow`` from every kind of proposal. Acceptance is run
through the package's own tree and sampling, so a law that comes out right vouches for
them too.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule
from treespec.chance import NO_TOKEN, AbstractChance
from treespec.sampling import Sampling
from treespec.siblings import draw_siblings
from treespec.testing.enumeration import outcomes
from treespec.testing.layouts import Layout, as_grown
from treespec.testing.toys import Model, Text
from treespec.tree import ROOT, HostTree, Layer, TokenTree, root_tree
from treespec.types import Acceptance, ProposalKind

CPU = torch.device("cpu")
PLAIN = Sampling(temperature=1.0)
Law = Mapping[Text, float]
Limit = Callable[[HostTree, int], int]
"""From what was drawn so far and a node to the most children that the node gets."""


def no_limit(host: HostTree, node: int) -> int:
    """Let every node have as many children as its depth allows."""
    return sys.maxsize


def children_of(
    proposal: ProposalKind, law: Tensor, width: int, chance: AbstractChance
) -> list[int]:
    """Return the children of one node in draw order, as the kind defines them."""
    if proposal is ProposalKind.DETERMINISTIC:
        return law.topk(min(width, law.shape[0])).indices.tolist()
    drawn = draw_siblings(proposal, law[None], width, chance)[0].tolist()
    return [token for token in drawn if token != NO_TOKEN]


@dataclass(frozen=True, slots=True)
class Setting:
    """A pair of models, a way to draft, and the sampling of the request.

    Attributes:
        target, draft: The models.
        proposal: How siblings are drawn.
        widths: Children per node at depth 0, 1, ...
        sampling: Turns the logits of both models into laws.
        declared: The proposal that the tree claims; a lie is for negative controls.
        limit: Narrows nodes, by their place or by what was drawn before.
        last_tokens: Tokens after which a node gets no further child.
        layout: The order in which the tree holds its nodes and draft laws.
    """

    target: Model
    draft: Model
    proposal: ProposalKind
    widths: tuple[int, ...]
    sampling: Sampling = PLAIN
    declared: ProposalKind | None = None
    limit: Limit = no_limit
    last_tokens: frozenset[int] = frozenset()
    layout: Layout = as_grown

    @property
    def vocab_size(self) -> int:
        """Tokens of the toy."""
        return self.target((0,)).shape[0]

    def grow(self, text: Text, chance: AbstractChance) -> TokenTree:
        """Draft a tree below the text."""
        tree = root_tree(text[-1], self.declared or self.proposal, CPU)
        frontier = [ROOT]
        for width in self.widths:
            layer = self._layer(tree, text, frontier, width, chance)
            if layer is None:
                break
            first = tree.size
            tree = tree.extend(layer, torch.tensor(frontier))
            frontier = list(range(first, tree.size))
        return self.layout(tree)

    def _layer(
        self,
        tree: TokenTree,
        text: Text,
        frontier: list[int],
        width: int,
        chance: AbstractChance,
    ) -> Layer | None:
        texts, host = node_texts(tree, text), tree.host()
        rows = torch.stack([self.draft(texts[node]) for node in frontier])
        laws = self.sampling.probs(rows)
        new = [
            (node, token, float(law[token].log()))
            for node, law in zip(frontier, laws, strict=True)
            for token in self._children(law, min(width, self.limit(host, node)), chance)
        ]
        if not new:
            return None
        parents, tokens, logprobs = zip(*new, strict=True)
        return Layer(
            parents=torch.tensor(parents),
            tokens=torch.tensor(tokens),
            draft_logprobs=torch.tensor(logprobs),
            sources=torch.zeros(len(new), dtype=torch.int64),
            draft_probs=None if tree.proposal is ProposalKind.DETERMINISTIC else laws,
        )

    def _children(self, law: Tensor, width: int, chance: AbstractChance) -> list[int]:
        if width == 0:
            return []
        children = children_of(self.proposal, law, width, chance)
        ends = [i + 1 for i, x in enumerate(children) if x in self.last_tokens]
        return children[: min(ends, default=None)]

    def verify(self, tree: TokenTree, text: Text) -> Tensor:  # [N, V]
        """Return the target's logits at every node, history applied."""
        rows = [self.target(node_text) for node_text in node_texts(tree, text)]
        return self.sampling.apply_history(
            torch.stack(rows), tree.tokens, tree.parents, text
        )

    def target_law(self, text: Text) -> list[float]:
        """Return the law of the next token in autoregressive decoding."""
        logits = self.verify(root_tree(text[-1], self.proposal, CPU), text)
        law: list[float] = self.sampling.probs(logits[0]).tolist()
        return law


def node_texts(tree: TokenTree, text: Text) -> list[Text]:
    """Return the text up to and including every node."""
    host = tree.host()
    return [
        text + tuple(host.tokens[above] for above in host.path(node))
        for node in range(tree.size)
    ]


@dataclass(frozen=True, slots=True)
class Round:
    """One step of decoding.

    Attributes:
        tree: What was drafted.
        acceptance: What the rule made of it.
        committed: The tokens that the step added to the text.
    """

    tree: TokenTree
    acceptance: Acceptance
    committed: Text


def play_round(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text, chance: AbstractChance
) -> Round:
    """Draft, verify and accept once."""
    tree = setting.grow(text, chance)
    logits = setting.verify(tree, text)
    acceptance = rule.accept(tree, logits, setting.sampling, chance)
    path = tree.tokens[list(acceptance.node_ids)].tolist()
    return Round(tree, acceptance, (*path, acceptance.next_token))


def rounds(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text
) -> Iterator[tuple[float, Round]]:
    """Yield every outcome of one round with its probability."""
    for draft_weight, tree in outcomes(partial(setting.grow, text)):
        for weight, outcome in play_accept(rule, setting, text, tree):
            yield draft_weight * weight, outcome


def play_accept(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text, tree: TokenTree
) -> Iterator[tuple[float, Round]]:
    """Yield everything that may become of one tree, with its probability."""
    logits = setting.verify(tree, text)
    accept = partial(rule.accept, tree, logits, setting.sampling)
    tokens = tree.tokens.tolist()
    for weight, acceptance in outcomes(accept):
        path = (tokens[node] for node in acceptance.node_ids)
        yield weight, Round(tree, acceptance, (*path, acceptance.next_token))


def output_law(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text, length: int
) -> Law:
    """Return the law of the next ``length`` tokens, over as many rounds as it takes."""
    if length == 0:
        return {(): 1.0}
    again = partial(output_law, rule, setting)
    return _joined(text, rounds(rule, setting, text), length, again)


def continued_law(
    setting: Setting, text: Text, played: Iterable[tuple[float, Round]], length: int
) -> Law:
    """Return the law of one round's tokens, continued without speculation.

    Much cheaper than ``output_law``; right for all ``length`` tokens if and only if
    the round is.

    Args:
        setting: Its target continues the text.
        text: Where the round began.
        played: All outcomes of the round.
        length: How many tokens.
    """
    return _joined(text, played, length, partial(autoregressive_law, setting))


def _joined(
    text: Text,
    played: Iterable[tuple[float, Round]],
    length: int,
    law_after: Callable[[Text, int], Law],
) -> Law:
    """Return the law of a round's tokens and, up to ``length``, of those after it."""
    heads: defaultdict[Text, float] = defaultdict(float)
    for weight, outcome in played:
        heads[outcome.committed[:length]] += weight
    law: defaultdict[Text, float] = defaultdict(float)
    for head, weight in heads.items():
        tails = law_after(text + head, length - len(head))
        for tail, tail_weight in tails.items():
            law[head + tail] += weight * tail_weight
    return law


def autoregressive_law(setting: Setting, text: Text, length: int) -> Law:
    """Return the law of the next ``length`` tokens without speculation."""
    if length == 0:
        return {(): 1.0}
    return {
        (token, *tail): prob * tail_prob
        for token, prob in enumerate(setting.target_law(text))
        for tail, tail_prob in autoregressive_law(
            setting, (*text, token), length - 1
        ).items()
    }


def distance(law: Law, other: Law) -> float:
    """Return the largest difference of any probability."""
    return max(abs(law.get(x, 0.0) - other.get(x, 0.0)) for x in {*law, *other})


def bias(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text, length: int
) -> float:
    """Return how far the rule's law of the next tokens is from the target's."""
    law = output_law(rule, setting, text, length)
    return distance(law, autoregressive_law(setting, text, length))


def expected_accepted(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text = (0,)
) -> float:
    """Return the mean number of accepted draft tokens in one round."""
    return sum(
        weight * len(outcome.acceptance.node_ids)
        for weight, outcome in rounds(rule, setting, text)
    )


def recovered_share(
    rule: AbstractAcceptanceRule, setting: Setting, text: Text = (0,)
) -> float:
    """Return the share of rounds that end with a recovered token."""
    return sum(
        weight
        for weight, outcome in rounds(rule, setting, text)
        if outcome.acceptance.next_kind == "recovered"
    )
