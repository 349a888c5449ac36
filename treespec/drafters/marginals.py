"""One law per depth, whatever the branch: trees of any width for one chain's cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from treespec.draft import AbstractDraft, listed
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.drafters.routed import Route, RoutedDraft
from treespec.errors import TreespecError
from treespec.tree import ROOT, HostTree, Layer, TokenTree, root_tree


@dataclass(frozen=True, slots=True)
class Marginals(AbstractDrafter):
    """Gives every node the law that a drafter has at its depth of one greedy chain.

    A policy then grows on products of per-position laws, as DDTree does on those of a
    block-diffusion draft (2604.12989). The drafter is asked about one node per depth:
    the tree's width costs nothing. What branches off the chain is guessed as if it had
    not. Children may be drawn from the laws: they are what was drawn from. Where no
    forward is allowed and the drafter runs a model, it knows what it has asked before.

    Attributes:
        drafter: Where the laws come from.
    """

    drafter: AbstractDrafter

    def __post_init__(self) -> None:
        """Check that there is a drafter."""
        if not isinstance(self.drafter, AbstractDrafter):
            raise TreespecError(
                f"drafter.drafter must be a drafter, got {self.drafter!r}; give a "
                "_target_ such as treespec.drafters.DraftModel"
            )

    @property
    def source_names(self) -> tuple[str, ...]:
        """Those of the drafter."""
        return self.drafter.source_names

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Those of the drafter."""
        return self.drafter.hidden_layers

    @property
    def runs_model(self) -> bool:
        """Whether the drafter does."""
        return self.drafter.runs_model

    @property
    def num_successors(self) -> int:
        """Those of the drafter."""
        return self.drafter.num_successors

    def cold(self) -> Marginals:
        """Return the marginals of the cold drafter."""
        return replace(self, drafter=self.drafter.cold())

    def start(self, setting: DraftSetting) -> MarginalsSession:
        """Return a session with a chain per request."""
        return MarginalsSession(self.drafter.start(setting), self.runs_model)


@dataclass(slots=True)
class _Chain:
    """The greedy chain below one request's text.

    Attributes:
        tree: Root and chain; the node at depth d has the id d.
        laws: What the drafter says at depth 0, 1, ...; only the last may be empty.
    """

    tree: TokenTree
    laws: list[AbstractDraft] = field(default_factory=list)

    def is_short_of(self, depth: int) -> bool:
        """Return whether the law at a depth is still to be asked for."""
        return self.tree.size > len(self.laws) and len(self.laws) <= depth

    def question(self, request: int) -> Frontier:
        """Return the chain's last node as a frontier."""
        depth = len(self.laws)
        node = torch.tensor([depth], device=self.tree.tokens.device)
        return Frontier(request, self.tree, node, depth)

    def extend(self, law: AbstractDraft) -> None:
        """Take in the law of the last node, and go on with its likeliest child."""
        best, parent = law.top(1), len(self.laws)
        self.laws.append(law)
        parents = torch.full_like(best.tokens, parent)
        layer = Layer(parents, best.tokens, best.logprobs, best.sources)
        self.tree = self.tree.extend(layer, parents)

    def draft(self, depths: Sequence[int]) -> AbstractDraft:
        """Return the laws at some depths; below its end the chain knows nothing."""
        device = self.tree.tokens.device
        rows_at: dict[int, list[int]] = {}
        for row, depth in enumerate(depths):
            if depth < len(self.laws):
                rows_at.setdefault(depth, []).append(row)
        if not rows_at:
            return listed([()] * len(depths), device)
        routes = []
        for depth, rows in rows_at.items():
            places = torch.tensor(rows, device=device)
            routes.append(Route(self.laws[depth], torch.zeros_like(places), places))
        return RoutedDraft(tuple(routes), len(depths))


class MarginalsSession(AbstractDraftSession):
    """A greedy chain per request, as long as its tree is deep."""

    def __init__(self, session: AbstractDraftSession, runs_model: bool) -> None:
        """Begin without requests.

        Args:
            session: The drafter's.
            runs_model: Whether its answers may take a forward.
        """
        self.session, self._runs_model = session, runs_model
        self._chains: dict[int, _Chain] = {}

    @property
    def num_forwards(self) -> int:
        """Forwards of the drafter: one per depth."""
        return self.session.num_forwards

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Start the request with the drafter."""
        self.session.admit(request, prompt, num_slots)

    def num_unread(self, request: int) -> int:
        """Return how many committed tokens the drafter has not read."""
        return self.session.num_unread(request)

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return the law of each node's depth; chains grow side by side.

        A chain does not grow where a forward is not allowed: a law that a drafter has
        without its model would stay, and be wrong once the model may be asked.
        """
        hosts = [frontier.tree.host() for frontier in frontiers]
        depths = [_depths(f, host) for f, host in zip(frontiers, hosts, strict=True)]
        wanted = {
            f.request: max(of_nodes)
            for f, of_nodes in zip(frontiers, depths, strict=True)
            if f.may_forward or not self._runs_model
        }
        for frontier, host in zip(frontiers, hosts, strict=True):
            if frontier.request not in self._chains:
                tree = frontier.tree
                root = root_tree(host.tokens[ROOT], tree.proposal, tree.tokens.device)
                self._chains[frontier.request] = _Chain(root)
        self._lengthen(wanted)
        return [
            self._chains[f.request].draft(of_nodes)
            for f, of_nodes in zip(frontiers, depths, strict=True)
        ]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Tell the drafter how much of its chain is text now."""
        chain = self._chains.pop(request, None)
        drafted = [] if chain is None else chain.tree.tokens[1:].tolist()
        accepted = feedback.tokens[: len(feedback.node_ids)]
        agree = [a == d for a, d in zip(accepted, drafted, strict=False)]
        kept = [*agree, False].index(False)
        hidden: Tensor | None = feedback.hidden
        self.session.commit(
            request,
            replace(
                feedback,
                node_ids=tuple(range(1, kept + 1)),
                hidden=None if hidden is None else hidden[: kept + 1],
            ),
        )

    def release(self, request: int) -> None:
        """End the request with the drafter."""
        self._chains.pop(request, None)
        self.session.release(request)

    def _lengthen(self, wanted: dict[int, int]) -> None:
        """Ask for the laws down to the wanted depth of every request's chain."""
        while short := [
            request
            for request, depth in wanted.items()
            if self._chains[request].is_short_of(depth)
        ]:
            questions = [self._chains[request].question(request) for request in short]
            answers = self.session.expand(questions)
            for request, law in zip(short, answers, strict=True):
                self._chains[request].extend(law)


def _depths(frontier: Frontier, host: HostTree) -> list[int]:
    """Return the depth of every node of a frontier."""
    if frontier.depth == 0:
        return [0]
    depths = host.depths()
    return [depths[node] for node in frontier.nodes.tolist()]
