"""Drafters that keep their contract pass, and each way to break it is found."""

import random
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.oracles import adapted
from treespec.draft import Children, DenseDraft, SparseDraft
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftModel,
    Merge,
    PromptLookup,
    SuffixMemory,
)
from treespec.drafters.team import Question
from treespec.testing import ConformanceError, check_drafter
from treespec.testing.toys import random_model, table_model


def toy_draft(vocab_size: int) -> DraftModel:
    return DraftModel(table_model(random_model(vocab_size, seed=1), vocab_size))


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param(PromptLookup(), id="lookup"),
        pytest.param(PromptLookup(2, 2, 1), id="lookup-of-pairs"),
        pytest.param(PromptLookup(64, 2), id="suffix"),
        pytest.param(PromptLookup(memory=SuffixMemory()).cold(), id="cold-lookup"),
        pytest.param(toy_draft(8), id="model"),
        pytest.param(toy_draft(5), id="model-with-another-vocabulary"),
    ],
)
def test_the_packages_drafters_keep_their_contract(drafter: AbstractDrafter) -> None:
    check_drafter(drafter)


def test_a_real_model_keeps_its_contract_for_a_real_target() -> None:
    target = adapted("llama", 1)
    check_drafter(DraftModel(adapted("llama", 2)), target)


def test_hidden_states_of_the_target_are_handed_over() -> None:
    seen: list[tuple[int, ...]] = []

    class Reads(Frequent):
        hidden_layers = (0, 1)

        def read(self, hidden):
            seen.append(tuple(hidden.shape))

    check_drafter(Reads(), adapted("llama", 1))
    assert {shape[1:] for shape in seen} == {(2, 32)}
    assert {1, 2, 4} <= {shape[0] for shape in seen}, "the root and what was accepted"


@dataclass
class Frequent(AbstractDrafter):
    """Proposes the tokens that the text has most of; a drafter of the plain kind.

    Its faults are subclasses, each with one method changed.
    """

    source_names = ("frequent",)
    hidden_layers = ()

    def start(self, setting):
        return FrequentSession(self, setting)

    def answer(self, session, frontier):
        text = session.texts[frontier.request]
        return SparseDraft(
            self.children(text, frontier, session.setting), self.rows(frontier)
        )

    def rows(self, frontier):
        return frontier.nodes.shape[0]

    def children(self, text, frontier, setting):
        counts = [text.count(token) for token in range(setting.vocab_size)]
        tokens = sorted(range(setting.vocab_size), key=lambda t: -counts[t])[:2]
        logprobs = [np.log((counts[t] + 1) / (len(text) + 8)) for t in tokens]
        num_rows = frontier.nodes.shape[0]
        return Children(
            torch.arange(num_rows).repeat_interleave(2),
            torch.tensor(tokens * num_rows),
            torch.tensor(logprobs * num_rows, dtype=torch.float32),
            torch.zeros(2 * num_rows, dtype=torch.int64),
        )

    def admit(self, session, request, prompt):
        session.texts[request] = list(prompt)

    def read(self, hidden):
        assert hidden is None

    def release(self, session, request):
        del session.texts[request]


class FrequentSession(AbstractDraftSession):
    num_forwards = 0

    def __init__(self, drafter, setting):
        self.drafter, self.setting, self.texts = drafter, setting, {}

    def admit(self, request, prompt, num_slots):
        self.drafter.admit(self, request, prompt)

    def expand(self, frontiers):
        return [self.drafter.answer(self, frontier) for frontier in frontiers]

    def commit(self, request, feedback):
        self.drafter.read(feedback.hidden)
        self.texts[request] += feedback.tokens

    def release(self, request):
        self.drafter.release(self, request)


def test_a_drafter_of_the_plain_kind_keeps_its_contract() -> None:
    report = check_drafter(Frequent())
    assert (report.num_texts, report.vocab_sizes) == (18, (8, 3))
    assert str(report).startswith(f"Frequent: {report.num_answers} answers alike")


class Altered(Frequent):
    """Changes the children before they are handed over."""

    def children(self, text, frontier, setting):
        return self.altered(super().children(text, frontier, setting), setting)


class BeyondVocabulary(Altered):
    def altered(self, children, setting):
        return replace(children, tokens=children.tokens + setting.vocab_size - 1)


class AlwaysTheSame(Altered):
    """Right for the larger vocabulary, beyond the smaller one."""

    def altered(self, children, setting):
        return replace(children, tokens=torch.tensor([5, 6] * (children.size // 2)))


class NoLogs(Altered):
    def altered(self, children, setting):
        return replace(children, logprobs=children.logprobs.exp())


class NotANumber(Altered):
    def altered(self, children, setting):
        return replace(children, logprobs=children.logprobs * torch.nan)


class UnknownSource(Altered):
    def altered(self, children, setting):
        return replace(children, sources=children.sources + 1)


class WorstFirst(Altered):
    def altered(self, children, setting):
        logprobs = torch.tensor([-3.0, -1.0] * (children.size // 2))
        return replace(children, logprobs=logprobs)


class TwiceTheSame(Altered):
    def altered(self, children, setting):
        return replace(children, tokens=children.tokens * 0)


class WrongNumberOfRows(Frequent):
    def rows(self, frontier):
        return frontier.nodes.shape[0] + 1


class MissingRequest(Frequent):
    def start(self, setting):
        session = super().start(setting)
        session.expand = lambda frontiers: []
        return session


class NotAsked(Frequent):
    def start(self, setting):
        session = super().start(setting)
        session.expand = lambda frontiers: None
        return session


class Stumbles(Frequent):
    def answer(self, session, frontier):
        return Lawless(torch.zeros(frontier.nodes.shape[0], 8))


class NoDraft(Frequent):
    def answer(self, session, frontier):
        return [0, 1]


@dataclass(frozen=True)
class Wrong(DenseDraft):
    """A dense draft with one answer changed."""

    def law(self, sampling, vocab_size):
        return super().law(sampling, vocab_size) * 0.9


class Lawless(DenseDraft):
    def law(self, sampling, vocab_size):
        raise RuntimeError("no law")


class TooMany(DenseDraft):
    def top(self, k):
        return super().top(k + 1)


class KnowsLess(DenseDraft):
    def known_rows(self):
        return super().known_rows()[1:]


class SourcesOfOneRow(DenseDraft):
    def row_sources(self):
        return super().row_sources().repeat(2)


def answering(kind):
    class Answering(Frequent):
        def answer(self, session, frontier):
            shape = (frontier.nodes.shape[0], session.setting.vocab_size)
            return kind(torch.arange(shape[1]).float().expand(shape))

    return Answering


class LastRequestWins(Frequent):
    """Keeps the text of the request that was admitted last, for all of them."""

    def admit(self, session, request, prompt):
        super().admit(session, request, prompt)
        session.newest = request

    def answer(self, session, frontier):
        return super().answer(session, replace(frontier, request=session.newest))


class Unforgetful(Frequent):
    """A released request leaves its text under its key."""

    def admit(self, session, request, prompt):
        session.texts[request] = [*session.texts.get(request, []), *prompt]

    def release(self, session, request):
        pass


@dataclass
class OnItself(Frequent):
    """Counts on the object what it was asked."""

    asked: list[int] = field(default_factory=list)

    def answer(self, session, frontier):
        self.asked.append(frontier.depth)
        return super().answer(session, frontier)


class OnItsClass(Frequent):
    texts: ClassVar[dict] = {}

    def start(self, setting):
        session = super().start(setting)
        session.texts = self.texts
        return session


class Torch(Frequent):
    def answer(self, session, frontier):
        torch.rand(())
        return super().answer(session, frontier)


class Numpy(Frequent):
    def answer(self, session, frontier):
        np.random.rand()
        return super().answer(session, frontier)


class Python(Frequent):
    def answer(self, session, frontier):
        random.random()
        return super().answer(session, frontier)


class Moody(Altered):
    def altered(self, children, setting):
        noise = torch.rand((), generator=MOOD)
        return replace(children, logprobs=children.logprobs - noise)


MOOD = torch.Generator()


class Raises(Frequent):
    def release(self, session, request):
        raise KeyError(request)


class TwoRequestsOnly(Frequent):
    """Has places for as many requests as run at once, and takes the key for one."""

    def admit(self, session, request, prompt):
        session.texts.setdefault("places", [None, None])[request] = prompt
        super().admit(session, request, prompt)


class BreaksDown(Frequent):
    def answer(self, session, frontier):
        raise IndexError


class ChangesTheTree(Frequent):
    def answer(self, session, frontier):
        frontier.tree.tokens[0] = 0
        return super().answer(session, frontier)


class NoName(Frequent):
    source_names = ()


class WantsHidden(Frequent):
    hidden_layers = (3,)


class ForwardsAnyway(Frequent):
    """Runs its model whether it may or not."""

    runs_model = True

    def start(self, setting):
        session = toy_draft(8).start(setting)
        expand = session.expand
        session.expand = lambda frontiers: expand(
            [replace(frontier, may_forward=True) for frontier in frontiers]
        )
        return session


class HidesItsModel(Frequent):
    def start(self, setting):
        return toy_draft(8).start(setting)


class Sulks(Frequent):
    """Says nothing in a whole step once it was refused a forward in it."""

    runs_model = True

    def answer(self, session, frontier):
        draft, text = super().answer(session, frontier), session.texts[frontier.request]
        if session.texts.get("refused") == text:
            return SparseDraft(draft.candidates.select(torch.arange(0)), draft.num_rows)
        if not frontier.may_forward:
            session.texts["refused"] = list(text)
        return draft


class NeverCatchesUp(Frequent):
    """Asks a model about nodes whose parents it was not asked about."""

    runs_model = True
    source_names = ("frequent", "draft_model")

    def start(self, setting):
        session = Merge((Frequent(), toy_draft(8))).start(setting)
        session.question = lambda place, whole, rows: Question(
            whole.frontier, whole.nodes, whole
        )
        return session


@pytest.mark.parametrize(
    ("faulty", "says"),
    [
        (ForwardsAnyway, "may_forward is False, but expand took 1 forward(s)"),
        (HidesItsModel, "runs_model is False, but expand took 1 forward(s); say True"),
        (Sulks, "another answer after nodes for which it was allowed no forward"),
        (NeverCatchesUp, "expand raised AssertionError: holes in the text"),
        (BeyondVocabulary, "has token 8, but it must be an integer from 0 to 7"),
        (AlwaysTheSame, "has token 5, but it must be an integer from 0 to 2"),
        (NoLogs, "it must be a number <= 0"),
        (NotANumber, "has the log-probability nan"),
        (UnknownSource, "has source 1, but it must be an integer from 0 to 0"),
        (WorstFirst, "must stand best first"),
        (TwiceTheSame, "repeats a token in row 0"),
        (WrongNumberOfRows, "the law has the shape"),
        (MissingRequest, "was asked about 1 requests and answered 0"),
        (NoDraft, "must return a list of AbstractDraft, and one is a list"),
        (answering(Wrong), "must sum to one, or be empty"),
        (answering(TooMany), "gives row 0 2 candidates"),
        (answering(KnowsLess), "known_rows says"),
        (answering(SourcesOfOneRow), "row_sources has the shape"),
        (LastRequestWins, "with another request beside it in the session"),
        (Unforgetful, "under a key that an earlier, released request had"),
        (OnItself, "OnItself changes its own object when it is used"),
        (OnItsClass, "with another request in another session"),
        (
            Torch,
            "draws random numbers, which a drafter must not: it moves the",
        ),
        (Numpy, "it moves the global generator of numpy.random"),
        (Python, "it moves the global generator of random"),
        (Moody, "asked again, in a fresh session"),
        (Moody, "it draws random numbers, or keeps something outside"),
        (NotAsked, "expand must return a list of drafts, got None"),
        (Stumbles, "Stumbles: its answer raised RuntimeError: no law"),
        (Raises, "release raised KeyError"),
        (TwoRequestsOnly, "decoding with Chain raised IndexError"),
        (ChangesTheTree, "expand changed the tree"),
        (NoName, "source_names must be a tuple of at least one text"),
        (WantsHidden, "give check_drafter(drafter, target=MODEL)"),
        (object, "wants an AbstractDrafter, got a object"),
    ],
)
def test_a_faulty_drafter_is_found(faulty, says: str) -> None:
    with pytest.raises(ConformanceError) as found:
        check_drafter(faulty())
    assert says in str(found.value).splitlines()[0]


@pytest.mark.parametrize("faulty", [BeyondVocabulary, BreaksDown])
def test_the_error_shows_the_tree(faulty) -> None:
    with pytest.raises(ConformanceError) as found:
        check_drafter(faulty())
    _, *case = str(found.value).splitlines()
    assert case[0].startswith("  after the text [1, 2, 0, 1, 2")
    assert case[1:] == [
        "  asked for the children of nodes [0] in the tree",
        f"  tokens  [{case[0].rstrip(']').split()[-1]}]",
        "  parents [-1]",
    ]
