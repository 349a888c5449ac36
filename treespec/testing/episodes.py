"""Requests as a decoder would play them to a drafter: recorded once, replayed at will.

An episode is made with one request in one session: its trees grow from the drafter's
own candidates. Replayed beside others, or in a session that has seen others, it must
get the same answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from treespec.draft import AbstractDraft
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
    Successors,
)
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import ModelSession
from treespec.testing.answers import Answer, Question, checked_answer
from treespec.testing.failure import ConformanceError, reported
from treespec.tree import Layer, TokenTree, root_tree
from treespec.types import ProposalKind
from treespec.verifiers import Candidate, TreeAttention

NUM_SLOTS = 64
"""Enough for every text and tree here."""


@dataclass(frozen=True, slots=True)
class Round:
    """The tree of one step, and how much of it is accepted.

    Attributes:
        widths: Most children of each expanded node, at depth 1, 2, ...
        accepted: Share of the deepest path that is accepted.
        refused: Expansions, counted from 0, for which no forward is allowed.
    """

    widths: tuple[int, ...]
    accepted: float
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expansion:
    """The drafter is asked about nodes.

    Attributes:
        text: The committed text.
        frontier: The nodes; a replay may use another key.
        answer: What the drafter said when the episode was made.
    """

    text: tuple[int, ...]
    frontier: Frontier
    answer: Answer


@dataclass(frozen=True, slots=True)
class Episode:
    """A whole request."""

    prompt: tuple[int, ...]
    events: tuple[Expansion | Feedback, ...]

    @property
    def expansions(self) -> tuple[Expansion, ...]:
        """What the drafter was asked."""
        return tuple(e for e in self.events if isinstance(e, Expansion))

    def all_allowed(self) -> Episode:
        """Return the same request with a forward allowed for every frontier."""
        events = [
            replace(event, frontier=replace(event.frontier, may_forward=True))
            if isinstance(event, Expansion)
            else event
            for event in self.events
        ]
        return replace(self, events=tuple(events))


@dataclass(frozen=True, slots=True)
class Stage:
    """A drafter and the target that it drafts for."""

    drafter: AbstractDrafter
    target: AbstractLanguageModel

    def start(self) -> AbstractDraftSession:
        """Return a session for two requests at once."""
        setting = DraftSetting(
            vocab_size=self.target.vocab_size,
            device=self.target.device,
            eos_ids=frozenset({self.target.vocab_size - 1}),
            num_slots=2 * NUM_SLOTS,
        )
        with reported(self.drafter, "start"):
            session = self.drafter.start(setting)
        if not isinstance(session, AbstractDraftSession):
            raise ConformanceError(
                f"{type(self.drafter).__name__}: start must return an "
                f"AbstractDraftSession, got a {type(session).__name__}"
            )
        return session

    def ask(
        self,
        session: AbstractDraftSession,
        asked: Sequence[tuple[tuple[int, ...], Frontier]],
    ) -> list[tuple[AbstractDraft, Answer]]:
        """Return the checked answers for pairs of a committed text and a frontier."""
        frontiers = [frontier for _, frontier in asked]
        trees = [frontier.tree.host() for frontier in frontiers]
        questions = [self.question(*one) for one in asked]
        case = "\n".join(question.case for question in questions)
        before = session.num_forwards
        with reported(self.drafter, "expand", case):
            drafts: object = session.expand(frontiers)
        name = type(self.drafter).__name__
        self._check_forwards(session.num_forwards - before, questions)
        if not isinstance(drafts, list | tuple):
            raise ConformanceError(
                f"{name}: expand must return a list of drafts, got {drafts!r}\n{case}"
            )
        if len(drafts) != len(frontiers):
            raise ConformanceError(
                f"{name}: expand was asked about {len(frontiers)} requests and "
                f"answered {len(drafts)}; return one draft per frontier, in their "
                f"order\n{case}"
            )
        answers = []
        for draft, question, tree in zip(drafts, questions, trees, strict=True):
            if question.frontier.tree.host() != tree:
                raise question.failure("expand changed the tree that it was shown")
            with reported(self.drafter, "its answer", question.case):
                answers.append((draft, checked_answer(draft, question)))
        return answers

    def _check_forwards(self, num_forwards: int, questions: Sequence[Question]) -> None:
        """Refuse forwards that were not allowed, or that were not to be expected."""
        if num_forwards and not self.drafter.runs_model:
            raise questions[0].failure(
                f"runs_model is False, but expand took {num_forwards} forward(s); say "
                "True"
            )
        if num_forwards and not any(q.frontier.may_forward for q in questions):
            raise questions[0].failure(
                f"may_forward is False, but expand took {num_forwards} forward(s); "
                "answer from what needs none, or that nothing is known"
            )

    def question(self, text: tuple[int, ...], frontier: Frontier) -> Question:
        """Return a frontier with what bounds the answer."""
        return Question(
            drafter=type(self.drafter).__name__,
            num_sources=len(self.drafter.source_names),
            vocab_size=self.target.vocab_size,
            text=text,
            frontier=frontier,
        )


def rehearse(stage: Stage, prompt: Sequence[int], rounds: Sequence[Round]) -> Episode:
    """Return the episode of a request that is alone in a fresh session.

    As in a decoder, the first token is committed before anything is drafted.
    """
    session, target = stage.start(), ModelSession(stage.target, NUM_SLOTS)
    sequence = target.admit(prompt, NUM_SLOTS)
    assert sequence is not None
    with reported(stage.drafter, "admit"):
        session.admit(0, tuple(prompt), NUM_SLOTS)
    events: list[Expansion | Feedback] = []
    for step in (Round((), 0.0), *rounds):
        text = tuple(sequence.tokens)
        expansions, tree = _grow(stage, session, text, step)
        host = tree.host()
        path = host.path(tree.size - 1)
        node_ids = tuple(path[: round(step.accepted * len(path))])
        accepted = tuple(host.tokens[node] for node in node_ids)
        tokens = (*accepted, _next_token((*text, *accepted), stage.target.vocab_size))
        (output,) = TreeAttention().verify(
            target, [Candidate(sequence, tree)], stage.drafter.hidden_layers
        )
        feedback = Feedback(
            node_ids,
            tokens,
            None if output.hidden is None else output.hidden[[0, *node_ids]],
            _successors(stage.drafter, tree, output.logits, node_ids),
        )
        target.commit(sequence, node_ids, tokens)
        with reported(stage.drafter, "commit"):
            session.commit(0, feedback)
        events += [*expansions, feedback]
    with reported(stage.drafter, "release"):
        session.release(0)
    return Episode(tuple(prompt), tuple(events))


def _grow(
    stage: Stage,
    session: AbstractDraftSession,
    text: tuple[int, ...],
    step: Round,
) -> tuple[list[Expansion], TokenTree]:
    """Return what was asked, and the tree that grew from the answers."""
    device = stage.target.device
    tree = root_tree(text[-1], ProposalKind.DETERMINISTIC, device)
    nodes = torch.zeros(1, dtype=torch.int64, device=device)
    left_out = nodes[:0]
    expansions = []
    for depth, width in enumerate(step.widths):
        frontier = Frontier(0, tree, nodes, depth, depth not in step.refused)
        ((draft, answer),) = stage.ask(session, [(text, frontier)])
        expansions.append(Expansion(text, frontier, answer))
        best = draft.top(width)
        first = tree.size
        tree = tree.extend(
            Layer(nodes[best.rows], best.tokens, best.logprobs, best.sources), nodes
        )
        # Every other node only, and the others later, as a policy may do it.
        new = torch.arange(first, tree.size, device=device)
        stride = 1 if best.size <= 2 else 2
        nodes = torch.cat((left_out, new[::stride]))
        left_out = new[1::2] if stride == 2 else new[:0]
        if nodes.shape[0] == 0:
            break
    return expansions, tree


def _successors(
    drafter: AbstractDrafter,
    tree: TokenTree,
    logits: Tensor,
    node_ids: tuple[int, ...],
) -> Successors | None:
    """Return what the target says at every node, if the drafter wants it."""
    if not drafter.num_successors:
        return None
    k = min(drafter.num_successors, logits.shape[-1])
    best = logits.log_softmax(dim=-1).topk(k, dim=-1)
    return Successors(tree.tokens, best.indices, best.values, (0, *node_ids))


def _next_token(text: Sequence[int], vocab_size: int) -> int:
    """Return a token that depends on the text and leaves some repetition in it."""
    return (3 * text[-1] + len(text) // 4 + 1) % vocab_size


@dataclass(slots=True)
class Role:
    """An episode that is being replayed.

    Attributes:
        session: Where; several roles may share one.
        key: The request's key.
        episode: What is played.
        waiting: Events that are still to come.
    """

    session: AbstractDraftSession
    key: int
    episode: Episode
    waiting: deque[Expansion | Feedback] = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the beginning."""
        self.waiting = deque(self.episode.events)


def replay(stage: Stage, roles: Sequence[Role]) -> Iterator[tuple[Expansion, Answer]]:
    """Play episodes in turns; yield each expansion with what the drafter says now.

    Requests of one session whose turn it is to expand share a call, the last one first.
    A request is released when its episode is over.
    """
    for role in roles:
        with reported(stage.drafter, "admit"):
            role.session.admit(role.key, role.episode.prompt, NUM_SLOTS)
    while active := [role for role in reversed(roles) if role.waiting]:
        events = [(role, role.waiting.popleft()) for role in active]
        yield from _expand(stage, events)
        for role, event in events:
            if isinstance(event, Feedback):
                with reported(stage.drafter, "commit"):
                    role.session.commit(role.key, event)
            if not role.waiting:
                with reported(stage.drafter, "release"):
                    role.session.release(role.key)


def _expand(
    stage: Stage, events: Sequence[tuple[Role, Expansion | Feedback]]
) -> Iterator[tuple[Expansion, Answer]]:
    """Ask about the expansions among the events, in one call per session."""
    for session in {id(role.session): role.session for role, _ in events}.values():
        expansions = [
            (role, event)
            for role, event in events
            if isinstance(event, Expansion) and role.session is session
        ]
        if not expansions:
            continue
        asked = [
            (event.text, replace(event.frontier, request=role.key))
            for role, event in expansions
        ]
        answers = stage.ask(session, asked)
        for (_, event), (_, answer) in zip(expansions, answers, strict=True):
            yield event, answer
