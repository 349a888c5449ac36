"""A draft model that reads the end of a text only: what it says, and what it reads."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.drafters.sessions import asked, started, toy, toy_draft
from tests.oracles import (
    CLOSE,
    adapted,
    assert_no_slot_leaks,
    plain_logits,
    reference,
)
from tests.scripts import CPU, make_tree
from tests.tiny import FAMILIES, Family
from treespec.draft import DenseDraft
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    DraftSetting,
    Feedback,
    Frontier,
    Marginals,
    PromptLookup,
)
from treespec.drafters.draft_model import DraftModelSession
from treespec.errors import TreespecError
from treespec.models.table import TableModel
from treespec.testing import check_drafter
from treespec.tree import NO_PARENT

V = 8
TEXT = (1, 2, 0, 3, 1, 2, 5, 4)


def session_of(
    model: TableModel, text: Sequence[int], context: int | None
) -> DraftModelSession:
    session = started(DraftModel(model, context=context), tuple(text))
    assert isinstance(session, DraftModelSession)
    return session


def root_logits(session: DraftModelSession, last: int) -> Tensor:
    draft = asked(session, make_tree([last], [NO_PARENT]), [0])
    assert isinstance(draft, DenseDraft)
    return draft.logits[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_it_would_say_to_the_end_of_the_text_alone(family: Family) -> None:
    """GPT-2 tells positions apart, and Gemma's window of 8 is longer than the cut."""
    prompts = {0: [1, *range(4, 24)], 1: [3, 9]}
    model = adapted(family, 2)
    session = DraftModel(model, context=6).start(
        DraftSetting(model.vocab_size, CPU, frozenset(), 128)
    )
    for key, prompt in prompts.items():
        session.admit(key, prompt, 64)
        session.commit(key, Feedback((), (7,)))
    heard = {0: [*range(19, 24), 7], 1: [3, 9, 7]}
    tree = make_tree([7, 10, 11, 12], [NO_PARENT, 0, 0, 2])
    for step in range(3):
        assert session.num_unread(0) == (6 if step == 0 else 2)
        for depth, nodes in enumerate(([0], [1, 2], [3])):
            frontiers = [Frontier(k, tree, torch.tensor(nodes), depth) for k in heard]
            drafts = session.expand(frontiers)
            for text, draft in zip(heard.values(), drafts, strict=True):
                paths = {0: [], 1: [10], 2: [11], 3: [11, 12]}
                texts = [[*text, *paths[node]] for node in nodes]
                module = reference(family, 2)
                plain = torch.stack([plain_logits(module, t)[-1] for t in texts])
                assert isinstance(draft, DenseDraft)
                torch.testing.assert_close(draft.logits, plain, **CLOSE)
        for key, text in heard.items():  # it grows beyond the six
            session.commit(key, Feedback((2,), (11, 13, 7)))
            text += [11, 13, 7]
    assert isinstance(session, DraftModelSession)
    assert_no_slot_leaks(session.session, list(session.sequences.values()))


def test_the_rest_of_the_prompt_is_never_read() -> None:
    model = toy(V)
    session = session_of(model, TEXT, 3)
    assert session.num_unread(0) == 3
    session.commit(0, Feedback((), (6,)))
    assert session.num_unread(0) == 3
    root_logits(session, 6)
    assert session.num_unread(0) == 0
    (rows,) = model.forwards
    assert rows.tokens.tolist() == [5, 4, 6]
    assert rows.positions.tolist() == [0, 1, 2]


@pytest.mark.parametrize("context", [None, 9, 1000])
def test_a_context_that_holds_the_prompt_changes_nothing(context: int | None) -> None:
    model = toy(V)
    session = session_of(model, TEXT, context)
    session.commit(0, Feedback((), (6,)))
    assert session.num_unread(0) == 9
    root_logits(session, 6)
    assert model.forwards[0].tokens.tolist() == [*TEXT, 6]


@pytest.mark.parametrize("num_tokens", range(1, 8))
def test_who_was_not_asked_for_long_begins_anew_if_more_than_that_is_unread(
    num_tokens: int,
) -> None:
    model = toy(V)
    session = session_of(model, TEXT, 4)
    root_logits(session, TEXT[-1])
    new = [(3 * i + 1) % V for i in range(num_tokens)]
    for token in new:
        session.commit(0, Feedback((), (token,)))
    assert session.num_unread(0) == min(num_tokens, 4)
    logits = root_logits(session, new[-1])
    heard = [*TEXT[-4:], *new] if num_tokens <= 4 else new[-4:]
    expected = root_logits(session_of(toy(V), heard, None), new[-1])
    torch.testing.assert_close(logits, expected)
    assert model.forwards[1].tokens.tolist() == new[-4:]
    assert_no_slot_leaks(session.session, [session.sequences[0]])


def test_one_step_may_commit_more_than_it_reads_at_once() -> None:
    """A lookup's line of ten is accepted; the model has read a part of the old text."""
    model = toy(V)
    session = session_of(model, TEXT, 2)
    tree = make_tree([4, 1, 2, 3], [NO_PARENT, 0, 1, 2])
    for node in range(3):
        asked(session, tree, [node])
    session.commit(0, Feedback((1, 2, 3), (1, 2, 3, 7, 7, 7)))
    assert session.num_unread(0) == 2
    logits = root_logits(session, 7)
    expected = root_logits(session_of(toy(V), (7, 7), None), 7)
    torch.testing.assert_close(logits, expected)
    assert_no_slot_leaks(session.session, [session.sequences[0]])


def test_what_was_read_and_accepted_stays_read() -> None:
    model = toy(V)
    session = session_of(model, TEXT, 1)
    tree = make_tree([4, 1, 2, 3], [NO_PARENT, 0, 1, 2])
    for node in range(4):
        asked(session, tree, [node])
    session.commit(0, Feedback((1, 2, 3), (1, 2, 3, 7)))
    assert session.num_unread(0) == 1
    root_logits(session, 7)
    assert session.sequences[0].tokens == [4, 1, 2, 3, 7]


def test_a_draft_with_few_positions_drafts_after_a_long_prompt() -> None:
    model = TableModel(lambda text: [0.0, 1.0], 2, max_positions=4)
    for context, size in ((None, 0), (2, 1)):
        drafter = DraftModel(model, context=context)
        session = started(drafter, (1, 0, 1, 1, 0, 1), vocab_size=2)
        draft = asked(session, make_tree([1], [NO_PARENT]), [0])
        assert draft.top(1).size == size


@pytest.mark.parametrize(
    "drafter",
    [
        DraftModel(toy(V), context=3),
        DraftModel(toy(V), context=1),
        Marginals(DraftModel(toy(V), context=2)),
        Cascade((PromptLookup(), DraftModel(toy(V), context=2)), (0.4,)),
        Cascade((toy_draft(V, 2), DraftModel(toy(V), context=3)), (0.3,)),
    ],
    ids=["model", "one-token", "marginals", "lookup-model", "model-model"],
)
def test_texts_and_answers_stay_right_with_it(drafter: AbstractDrafter) -> None:
    check_drafter(drafter)


@pytest.mark.parametrize("context", [0, -1, 2.0, True, "all"])
def test_a_context_that_is_none_is_refused(context: Any) -> None:
    says = r"^drafter\.context must be an integer >= 1, or null for all, got "
    with pytest.raises(TreespecError, match=says) as caught:
        DraftModel(toy(V), context=context)
    assert str(caught.value).endswith(repr(context))
