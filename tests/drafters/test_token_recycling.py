"""The target's runners-up, kept per token: what wins, what ends, what is remembered."""

from dataclasses import dataclass, replace

import pytest
import torch

from tests.drafters.sessions import asked, started
from tests.scripts import greedy_table, make_tree
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import (
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    RecyclingTable,
    Successors,
    SuffixMemory,
    TokenRecycling,
)
from treespec.errors import TreespecError
from treespec.policies import TopKTree
from treespec.testing import ConformanceError, check_drafter
from treespec.tree import NO_PARENT
from treespec.types import GenerationResult
from treespec.verifiers import TreeAttention


def say(
    after: list[int], tokens: list[list[int]], line: tuple[int, ...] = (0,)
) -> Feedback:
    """Feedback in which tokens follow, each half as likely as the one before it."""
    logprobs = torch.full((len(tokens), len(tokens[0])), 0.5).log().cumsum(dim=-1)
    successors = Successors(torch.tensor(after), torch.tensor(tokens), logprobs, line)
    return Feedback((), (after[0],), successors=successors)


@pytest.mark.parametrize("num_successors", [1, 2, 8])
def test_recycling_keeps_the_contract(num_successors: int) -> None:
    check_drafter(TokenRecycling(num_successors))


def test_a_warm_drafter_is_checked_cold_and_its_texts_warm_too() -> None:
    memory = RecyclingTable()
    report = check_drafter(TokenRecycling(memory=memory))
    assert report.num_warm_texts == report.num_texts == 18
    assert "18 warm" in str(report)
    assert memory.successors


@dataclass(frozen=True, slots=True)
class Trap(TokenRecycling):
    """Right when it is cold; names unknown tokens once it remembers."""

    def start(self, setting: DraftSetting) -> AbstractDraftSession:
        if self.memory is None or not self.memory.successors:
            return TokenRecycling.start(self, setting)
        unknown = {t: [(99, -0.1)] for t in range(setting.vocab_size)}
        self.memory.successors.update(unknown)
        return TokenRecycling.start(self, setting)


def test_a_drafter_that_is_wrong_with_a_memory_only_does_not_pass() -> None:
    """The kit once looked at it without its memory, and said ok."""
    with pytest.raises(ConformanceError, match="99 were drafted"):
        check_drafter(Trap(memory=RecyclingTable()))


@pytest.mark.parametrize("memory", [5, {}, SuffixMemory(), "abc"])
def test_a_memory_of_another_kind_is_refused(memory: object) -> None:
    """It once ended in an AttributeError after the models were loaded."""
    with pytest.raises(TreespecError, match="memory must be null or a RecyclingTable"):
        TokenRecycling(memory=memory)


def test_a_node_gets_what_followed_its_token_wherever_it_stands() -> None:
    session = started(TokenRecycling(2), (1,))
    tree = make_tree([2, 3, 4, 2], [NO_PARENT, 0, 0, 1])
    assert asked(session, tree, [0]).top(8).size == 0
    session.commit(0, say([2, 3], [[5, 6, 7], [4, 2, 1]]))
    found = asked(session, tree, [1, 2, 3]).top(8)
    assert found.rows.tolist() == [0, 0, 2, 2]
    assert found.tokens.tolist() == [4, 2, 5, 6]
    assert found.logprobs.exp().tolist() == pytest.approx([0.5, 0.25] * 2)
    assert session.num_forwards == 0


@pytest.mark.parametrize(
    ("after", "line", "winner"),
    [
        ([2, 3, 3, 3], (0, 1), 1),  # an accepted one before later ones
        ([2, 3, 3, 3], (0, 1, 2), 2),  # the deepest accepted one
        ([2, 3, 3, 3], (0,), 3),  # none is accepted: the last
        ([3, 3, 3, 4], (0, 3), 0),  # the root counts as accepted
    ],
)
def test_the_deepest_accepted_node_wins_and_else_the_last(
    after: list[int], line: tuple[int, ...], winner: int
) -> None:
    session = started(TokenRecycling(1), (1, 2))
    session.commit(0, say(after, [[4], [5], [6], [7]], line))
    best = asked(session, make_tree([3], [NO_PARENT]), [0]).top(1)
    assert best.tokens.tolist() == [4 + winner]


def test_what_came_later_replaces_what_came_before() -> None:
    session = started(TokenRecycling(2), (1, 2))
    session.commit(0, say([2], [[5, 6]]))
    session.commit(0, say([2], [[7, 5]]))
    found = asked(session, make_tree([2], [NO_PARENT]), [0]).top(2)
    assert found.tokens.tolist() == [7, 5]


def test_a_table_begins_with_the_pairs_of_the_prompt_until_the_target_speaks() -> None:
    session = started(TokenRecycling(2), (3, 4, 3, 5, 3, 5, 3, 6, 3))
    tree = make_tree([3, 4], [NO_PARENT, 0])
    found = asked(session, tree, [0]).top(8)
    assert found.tokens.tolist() == [5, 4]
    assert found.logprobs.exp().tolist() == pytest.approx([2 / 5, 1 / 5])
    session.commit(0, say([3], [[7, 1]]))
    found = asked(session, tree, [0, 1]).top(8)
    assert found.tokens.tolist() == [7, 1, 3]


def test_a_prompt_does_not_replace_what_the_target_said_earlier() -> None:
    memory = RecyclingTable()
    session = started(TokenRecycling(2, memory), (1,))
    session.commit(0, say([3], [[7, 1]]))
    again = started(TokenRecycling(2, memory), (3, 5, 3))
    found = asked(again, make_tree([3, 5], [NO_PARENT, 0]), [0, 1]).top(8)
    assert found.tokens.tolist() == [7, 1, 3]


def test_nothing_follows_the_end_of_a_text() -> None:
    session = started(TokenRecycling(2), (1, 2), eos_ids=(3,))
    session.commit(0, say([2, 3], [[3, 6], [4, 2]]))
    draft = asked(session, make_tree([2, 3, 2], [NO_PARENT, 0, 1]), [1, 2])
    assert draft.top(2).rows.tolist() == [1, 1]


def test_a_token_that_cannot_follow_is_no_candidate() -> None:
    """A law may have fewer tokens than are asked for; the rest are at -inf."""
    logprobs = torch.tensor([[0.0, -torch.inf]])
    said = Successors(torch.tensor([2]), torch.tensor([[5, 6]]), logprobs, (0,))
    session = started(TokenRecycling(2), (1, 2))
    session.commit(0, Feedback((), (2,), successors=said))
    draft = asked(session, make_tree([2], [NO_PARENT]), [0])
    assert draft.top(2).tokens.tolist() == [5]


# Across requests


def next_token(text: tuple[int, ...]) -> int:
    """Mostly a function of the last token: a text that recycling can guess."""
    return (5 * text[-1] + 3 + (len(text) % 7 == 0)) % 31


def decode(
    drafter: TokenRecycling, *prompts: list[int], max_concurrent: int = 1
) -> list[GenerationResult]:
    decoder = SpeculativeDecoder(
        greedy_table(next_token, 31),
        drafter,
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(3, 4, 8),
        max_concurrent=max_concurrent,
        trace=True,
    )
    return decoder.generate(prompts, max_new_tokens=24)


def facts(result: GenerationResult) -> list[tuple[object, ...]]:
    """Everything that was counted, without the clock."""
    clock = dict.fromkeys(
        name for name in result.steps[0].__dataclass_fields__ if name.endswith("_s")
    )
    steps = [replace(step, **dict.fromkeys(clock, 0.0)) for step in result.steps]
    return [(result.tokens,), *((step,) for step in steps)]


def test_a_prompt_costs_the_same_alone_and_after_another() -> None:
    """Public tables survived the prompt, so that results depended on the order."""
    first, second = [1, 2, 3], [7, 2, 9]
    (alone,) = decode(TokenRecycling(4), second)
    for max_concurrent in (1, 2):
        after = decode(TokenRecycling(4), first, second, max_concurrent=max_concurrent)
        assert [n.token for n in after[1].traces] == [n.token for n in alone.traces]
        if max_concurrent == 1:
            assert facts(after[1]) == facts(alone)
    assert sum(step.num_nodes for step in alone.steps) > 0


def test_a_table_that_is_kept_finds_more_and_changes_no_text() -> None:
    prompt, drafter = [1, 2, 3], TokenRecycling(4, RecyclingTable())
    first, again = (decode(drafter, prompt)[0] for _ in range(2))
    assert first.tokens == again.tokens == decode(drafter.cold(), prompt)[0].tokens
    assert len(again.steps) < len(first.steps)
    (cold,) = decode(drafter.cold(), prompt)
    assert facts(cold) == facts(decode(TokenRecycling(4), prompt)[0])
    assert drafter.cold().num_successors == 4


def test_a_table_of_a_larger_vocabulary_is_refused() -> None:
    memory = RecyclingTable()
    decode(TokenRecycling(4, memory), [1, 2, 3])
    with pytest.raises(TreespecError, match="target's vocabulary has 8 tokens; give"):
        started(TokenRecycling(4, memory), (1,))


def test_the_number_of_successors_is_checked() -> None:
    with pytest.raises(TreespecError, match=r"drafter\.num_successors must be an int"):
        TokenRecycling(0)
