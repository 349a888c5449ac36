"""What survives a request: nothing unless asked, and then no more than asked."""

from collections.abc import Sequence

import pytest
import torch

from tests.scripts import greedy_table, make_tree, spoken
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import (
    DraftSetting,
    Frontier,
    PromptLookup,
    RecyclingTable,
    SuffixMemory,
)
from treespec.errors import TreespecError
from treespec.policies import TopKTree
from treespec.tree import NO_PARENT
from treespec.types import GenerationResult
from treespec.verifiers import TreeAttention

PASSAGE = (3, 7, 5, 9, 11, 4, 8, 13)
OTHER_PROMPT, PROMPT = (1, 2), (1, 6)


def decoder(drafter: PromptLookup) -> SpeculativeDecoder:
    """Whatever the prompt, the target says the same passage once."""
    return SpeculativeDecoder(
        greedy_table(spoken(PASSAGE, 14, 2), 16),
        drafter,
        TopKTree(2),
        Greedy(),
        TreeAttention(),
        Constant(4, 2, 8),
        max_concurrent=1,
        trace=True,
    )


def cost(result: GenerationResult) -> object:
    """Everything of a result that is not a time."""
    steps = [
        (r.num_nodes, r.depth, r.width, r.nodes_by_depth, r.num_accepted, r.next_kind)
        for r in result.steps
    ]
    return result.tokens, steps, [(n.step, n.token, n.parent) for n in result.traces]


@pytest.mark.parametrize(
    "drafter", [PromptLookup(), PromptLookup(64, 2)], ids=["lookup", "suffix"]
)
def test_a_prompt_costs_the_same_alone_and_after_another_one(
    drafter: PromptLookup,
) -> None:
    """Known bug 14: a table that survived made results depend on the order."""
    speaker = decoder(drafter)
    (alone,) = speaker.generate([PROMPT], max_new_tokens=8)
    _, after = speaker.generate([OTHER_PROMPT, PROMPT], max_new_tokens=8)
    (later,) = speaker.generate([PROMPT], max_new_tokens=8)
    assert cost(after) == cost(alone) == cost(later)


def test_with_a_memory_a_prompt_finds_the_text_of_an_earlier_one() -> None:
    memory = SuffixMemory()
    warm = PromptLookup(64, 1, memory=memory)
    (first,) = decoder(warm).generate([OTHER_PROMPT], max_new_tokens=8)
    assert memory.num_tokens == 10
    (second,) = decoder(warm).generate([PROMPT], max_new_tokens=8)
    (cold,) = decoder(warm.cold()).generate([PROMPT], max_new_tokens=8)
    assert memory.num_tokens == 20, "the cold one left nothing"
    assert cold.tokens == second.tokens == first.tokens
    assert [record.num_accepted for record in cold.steps] == [0] * 7
    assert [record.num_accepted for record in second.steps] == [4, 1]


def proposed(
    drafter: PromptLookup, text: Sequence[int], vocab_size: int = 50
) -> list[int]:
    session = drafter.start(
        DraftSetting(vocab_size, torch.device("cpu"), frozenset(), 0)
    )
    session.admit(0, text, 0)
    root = make_tree([text[-1]], [NO_PARENT])
    (draft,) = session.expand([Frontier(0, root, torch.tensor([0]), 0)])
    tokens: list[int] = draft.top(9).tokens.tolist()
    return tokens


def test_the_requests_own_text_goes_first() -> None:
    memory = SuffixMemory()
    memory.add([1, 2, 8])
    memory.add([1, 2, 9])
    warm = PromptLookup(memory=memory)
    assert proposed(warm, [2, 7, 2]) == [7, 9, 8]
    assert proposed(warm, [1, 2]) == [9, 8], "the more recent text first"
    assert proposed(warm.cold(), [1, 2]) == []
    memory.add([3, 2, 7])
    assert proposed(warm, [1, 2]) == [9, 8, 7], "the longer match before the recent one"


def test_nothing_is_copied_across_the_border_of_two_texts() -> None:
    memory = SuffixMemory()
    memory.add([1, 2])
    memory.add([3, 4])
    warm = PromptLookup(memory=memory)
    assert proposed(warm, [2]) == []
    assert proposed(warm, [3]) == [4]
    assert proposed(warm, [5, 3]) == [4]


def test_two_sessions_share_a_memory_and_a_request_sees_those_that_ended() -> None:
    """The memory grows while a tree of another session is being grown."""
    memory = SuffixMemory(max_tokens=6)
    warm = PromptLookup(memory=memory)
    setting = DraftSetting(50, torch.device("cpu"), frozenset(), 0)
    one, other = warm.start(setting), warm.start(setting)
    one.admit(0, [1, 2, 3], 0)
    other.admit(0, [1], 0)
    root, child = make_tree([1], [NO_PARENT]), make_tree([1, 2], [NO_PARENT, 0])

    def ask(*, below: bool) -> list[int]:
        tree, node = (child, 1) if below else (root, 0)
        frontier = Frontier(0, tree, torch.tensor([node]), node)
        tokens: list[int] = other.expand([frontier])[0].top(9).tokens.tolist()
        return tokens

    assert ask(below=False) == [], "the other one has not ended"
    one.release(0)
    assert ask(below=False) == [2]
    memory.add([7, 8, 9, 7])  # the first text is forgotten, the tree goes on
    assert ask(below=True) == [3]
    assert ask(below=False) == []


def test_the_oldest_texts_are_forgotten_whole() -> None:
    memory = SuffixMemory(max_tokens=10)
    warm = PromptLookup(memory=memory)
    for first in (10, 20, 30):
        memory.add([first, first + 1, first + 2])
    assert memory.num_tokens == 9
    memory.add([40, 41])
    assert memory.num_tokens == 5, "down to half, so that this is rare"
    assert [proposed(warm, [token]) for token in (10, 11, 20, 21)] == [[]] * 4
    assert [proposed(warm, [token]) for token in (30, 31, 40)] == [[31], [32], [41]]
    memory.add(range(11))
    assert memory.num_tokens == 5, "longer than the memory: not kept"
    memory.add(range(10))
    assert memory.num_tokens == 10, "the latest stays whole"
    assert proposed(warm, [30]) == []
    assert proposed(warm, [3]) == [4]


def test_a_memory_of_another_vocabulary_is_refused() -> None:
    memory = SuffixMemory()
    warm = PromptLookup(memory=memory)
    memory.add([1, 40])
    with pytest.raises(TreespecError, match=r"holds token 40, but .* has 8 tokens"):
        proposed(warm, [1], vocab_size=8)
    assert proposed(warm, [1], vocab_size=41) == [40]


@pytest.mark.parametrize("key", ["max_tokens", "max_ngram"])
def test_impossible_memories_are_refused(key: str) -> None:
    with pytest.raises(TreespecError, match=rf"memory\.{key} must be an integer >= 1"):
        SuffixMemory(**{key: 0})


@pytest.mark.parametrize("memory", [5, [1], RecyclingTable()])
def test_a_memory_of_another_kind_is_refused(memory: object) -> None:
    with pytest.raises(TreespecError, match="memory must be null or a SuffixMemory"):
        PromptLookup(memory=memory)
