"""What a step may spend is never exceeded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripts import continuation, greedy_table, mixing
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import AbstractDrafter, DraftModel, PromptLookup
from treespec.errors import TreespecError
from treespec.policies import AbstractDraftPolicy, Chain, SampledChain, TopKTree
from treespec.types import Budget
from treespec.verifiers import TreeAttention

VOCAB_SIZE = 5
SAID = mixing(VOCAB_SIZE)
DRAFTERS = (
    DraftModel(greedy_table(SAID, VOCAB_SIZE)),
    DraftModel(greedy_table(mixing(VOCAB_SIZE, first=1), VOCAB_SIZE)),
    PromptLookup(),
)
POLICIES = (Chain(), SampledChain(), TopKTree(1), TopKTree(2), TopKTree(3))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(DRAFTERS),
    st.sampled_from(POLICIES),
    st.integers(0, 5),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_no_tree_is_larger_than_its_budget(
    drafter: AbstractDrafter,
    policy: AbstractDraftPolicy,
    max_depth: int,
    max_width: int,
    max_nodes: int,
) -> None:
    decoder = SpeculativeDecoder(
        greedy_table(SAID, VOCAB_SIZE),
        drafter,
        policy,
        Greedy(),
        TreeAttention(),
        Constant(max_depth, max_width, max_nodes),
    )
    prompts = [[1, 2, 1, 2], [3]]
    results = decoder.generate(prompts, max_new_tokens=9)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.tokens) == continuation(SAID, prompt, 9)
        left = 9 - 1
        for record in result.steps:
            assert record.depth <= record.max_depth == min(max_depth, left - 1)
            assert record.width <= record.max_width == max_width
            assert record.num_nodes <= record.max_nodes == max_nodes
            by = "Constant" if max_depth <= left - 1 else "limit"
            assert record.budget_by == by
            left -= record.num_committed


def test_a_budget_that_can_be_spent_is_spent() -> None:
    """The limits above would hold for a tree that never grows."""
    decoder = SpeculativeDecoder(
        greedy_table(SAID, VOCAB_SIZE),
        DRAFTERS[0],
        TopKTree(3),
        Greedy(),
        TreeAttention(),
        Constant(max_depth=3, max_width=4, max_nodes=9),
    )
    record = decoder.generate([[1]], max_new_tokens=30)[0].steps[0]
    assert record.nodes_by_depth == (3, 4, 2)
    assert (record.depth, record.width, record.num_nodes) == (3, 4, 9)
    assert record.num_draft_forwards == 3


def test_depth_0_is_autoregressive_decoding() -> None:
    draft = greedy_table(SAID, VOCAB_SIZE)
    decoder = SpeculativeDecoder(
        greedy_table(SAID, VOCAB_SIZE),
        DraftModel(draft),
        Chain(),
        Greedy(),
        TreeAttention(),
        Constant(0),
    )
    result = decoder.generate([[1]], max_new_tokens=5)[0]
    assert list(result.tokens) == continuation(SAID, [1], 5)
    assert draft.forwards == [], "a draft that is never asked reads nothing"


def test_the_constant_budget_is_the_largest_one() -> None:
    controller = Constant(3, 2, 5)
    assert controller.largest == controller.budget(controller.init()) == Budget(3, 2, 5)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [((-1, 1, 1), "max_depth"), ((1, 0, 1), "max_width"), ((1, 1, -1), "max_nodes")],
)
def test_impossible_limits_are_refused(
    arguments: tuple[int, int, int], key: str
) -> None:
    with pytest.raises(TreespecError, match=key):
        Constant(*arguments)
