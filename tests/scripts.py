"""Scripted parts: a table target, a drafter and trees that do as they are told."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.draft import AbstractDraft, Children, SparseDraft
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.models.base import AbstractLanguageModel
from treespec.models.table import TableModel
from treespec.policies import TopKTree
from treespec.tree import NO_PARENT, Layer, TokenTree, root_tree
from treespec.types import ProposalKind
from treespec.verifiers import TreeAttention

CPU = torch.device("cpu")
Text = tuple[int, ...]
NextToken = Callable[[Text], int]


def mixing(vocab_size: int, first: int = 0) -> NextToken:
    """A next token that depends on every token of the text and on their order."""

    def next_token(text: Text) -> int:
        number = 17
        for token in text:
            number = (number * 31 + token + 1) % 1_000_003
        return first + number % (vocab_size - first)

    return next_token


def spoken(script: Sequence[int], otherwise: int, prompt_length: int) -> NextToken:
    """Says the script after a prompt, then the same token for ever."""

    def next_token(text: Text) -> int:
        place = len(text) - prompt_length
        return script[place] if place < len(script) else otherwise

    return next_token


def greedy_table(next_token: NextToken, vocab_size: int) -> TableModel:
    """A model whose argmax is ``next_token``; the other logits differ by text too."""

    def table(text: Text) -> list[float]:
        logits = [((sum(text) + 3 * i) % 11) / 11 for i in range(vocab_size)]
        logits[next_token(text)] = 5.0
        return logits

    return TableModel(table, vocab_size)


def continuation(next_token: NextToken, prompt: Sequence[int], count: int) -> list[int]:
    """What a greedy model says."""
    text = tuple(prompt)
    for _ in range(count):
        text += (next_token(text),)
    return list(text[len(prompt) :])


@dataclass(frozen=True)
class Ask:
    """What a script may look at when it names the children of a node.

    Attributes:
        request: Key of the request.
        round: How many rounds the request has committed, the prefill excluded.
        text: The committed text.
        path: Drafted tokens from the root down to the node.
    """

    request: int
    round: int
    text: Text
    path: Text


Script = Callable[[Ask], Sequence[int]]


@dataclass(frozen=True)
class ScriptedDrafter(AbstractDrafter):
    """Proposes the children that a function names."""

    script: Script
    hidden_layers: tuple[int, ...] = ()
    source_names: tuple[str, ...] = ("script",)

    def start(self, setting: DraftSetting) -> "ScriptedSession":
        return ScriptedSession(self)


@dataclass
class ScriptedSession(AbstractDraftSession):
    """Remembers each request's text, and what it was told of hidden states."""

    drafter: ScriptedDrafter
    texts: dict[int, Text] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)
    hidden: list[Tensor | None] = field(default_factory=list)
    num_forwards: int = 0

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        self.texts[request], self.rounds[request] = tuple(prompt), -1

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        return [self._expand(frontier) for frontier in frontiers]

    def commit(self, request: int, feedback: Feedback) -> None:
        self.texts[request] += tuple(feedback.tokens)
        self.rounds[request] += 1
        self.hidden.append(feedback.hidden)

    def release(self, request: int) -> None:
        del self.texts[request], self.rounds[request]

    def _expand(self, frontier: Frontier) -> SparseDraft:
        key, host = frontier.request, frontier.tree.host()
        rows, tokens, logprobs = [], [], []
        for row, node in enumerate(frontier.nodes.tolist()):
            path = tuple(host.tokens[above] for above in host.path(node))
            ask = Ask(key, self.rounds[key], self.texts[key], path)
            for rank, token in enumerate(self.drafter.script(ask)):
                rows.append(row)
                tokens.append(token)
                logprobs.append(-1.0 - rank)
        children = Children(
            torch.tensor(rows, dtype=torch.int64),
            torch.tensor(tokens, dtype=torch.int64),
            torch.tensor(logprobs, dtype=torch.float32),
            torch.zeros(len(rows), dtype=torch.int64),
        )
        return SparseDraft(children, frontier.nodes.shape[0])


def agreeing(next_token: NextToken, num_right: Mapping[int, Sequence[int]]) -> Script:
    """Guesses the first so many tokens of each round right, and the next one wrong.

    Args:
        next_token: What the target says.
        num_right: Per request, how many tokens are right in each round, in turn.
    """

    def script(ask: Ask) -> list[int]:
        rounds = num_right[ask.request]
        right = next_token(ask.text + ask.path)
        if len(ask.path) < rounds[ask.round % len(rounds)]:
            return [right]
        return [1 if right == 0 else 0]

    return script


def scripted_decoder(
    target: AbstractLanguageModel,
    script: Script,
    *,
    depth: int = 4,
    top_k: int = 1,
    eos_ids: Sequence[int] = (),
    trace: bool = False,
) -> SpeculativeDecoder:
    """A greedy decoder whose trees are scripted."""
    return SpeculativeDecoder(
        target=target,
        drafter=ScriptedDrafter(script),
        policy=TopKTree(top_k),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(depth, max_width=64, max_nodes=64),
        eos_ids=frozenset(eos_ids),
        trace=trace,
    )


def make_tree(tokens: Sequence[int], parents: Sequence[int]) -> TokenTree:
    """A deterministic tree from tokens and parents, the root's included."""
    assert parents[0] == NO_PARENT
    count = len(tokens) - 1
    layer = Layer(
        parents=torch.tensor(parents[1:], dtype=torch.int64),
        tokens=torch.tensor(tokens[1:], dtype=torch.int64),
        draft_logprobs=torch.full((count,), -1.0),
        sources=torch.zeros(count, dtype=torch.int64),
    )
    root = root_tree(tokens[0], ProposalKind.DETERMINISTIC, CPU)
    return root.extend(layer, torch.tensor([0]))


def random_tree(
    root: int, num_nodes: int, max_depth: int, vocab_size: int, seed: int
) -> TokenTree:
    """A tree of exactly this many drafted nodes and exactly this depth."""
    generator = torch.Generator().manual_seed(seed)

    def below(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    parents, depths, tokens = [NO_PARENT], [0], [root]
    for node in range(1, num_nodes + 1):
        inner = [i for i, depth in enumerate(depths) if depth < max_depth]
        parent = node - 1 if node <= max_depth else inner[below(len(inner))]
        parents.append(parent)
        depths.append(depths[parent] + 1)
        tokens.append(below(vocab_size))
    return make_tree(tokens, parents)


def node_texts(tree: TokenTree, text: Sequence[int]) -> list[Text]:
    """The text up to and including each node; ``text`` ends with the root."""
    host = tree.host()
    return [
        (*text, *(host.tokens[above] for above in host.path(node)))
        for node in range(tree.size)
    ]
