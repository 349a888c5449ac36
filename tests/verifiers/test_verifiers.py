"""One forward with a tree mask says what a forward per path says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import CLOSE, adapted, assert_no_slot_leaks
from tests.scripts import greedy_table, make_tree, mixing, random_tree
from tests.tiny import FAMILIES, Family
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import ModelSession
from treespec.tree import NO_PARENT, ROOT, TokenTree, root_tree
from treespec.types import ProposalKind
from treespec.verifiers import (
    AbstractVerifier,
    Candidate,
    Sequential,
    TreeAttention,
    VerifierOutput,
)


def verify(
    verifier: AbstractVerifier,
    model: AbstractLanguageModel,
    trees: list[TokenTree],
    hidden_layers: tuple[int, ...] = (),
) -> list[VerifierOutput]:
    """Verify trees below prompts of different lengths that end with their roots."""
    session = ModelSession(model, 64 * len(trees))
    candidates = []
    for index, tree in enumerate(trees):
        prompt = [*range(1, 4 + 5 * index), int(tree.tokens[ROOT])]
        sequence = session.admit(prompt, 64)
        assert sequence is not None
        candidates.append(Candidate(sequence, tree))
    with torch.inference_mode():
        outputs = verifier.verify(session, candidates, hidden_layers)
    for candidate in candidates:
        session.commit(candidate.sequence, (), [0])
    assert_no_slot_leaks(session, [candidate.sequence for candidate in candidates])
    return outputs


@pytest.mark.parametrize("family", FAMILIES)
def test_tree_attention_equals_the_sequential_oracle(family: Family) -> None:
    trees = [random_tree(5 + seed, 12, 4, 32, seed) for seed in range(3)]
    model = adapted(family, 1)
    together = verify(TreeAttention(), model, trees, (0, 2))
    alone = verify(Sequential(), model, trees, (0, 2))
    for output, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(output.logits, expected.logits, **CLOSE)
        assert output.hidden is not None
        assert expected.hidden is not None
        torch.testing.assert_close(output.hidden, expected.hidden, **CLOSE)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(0, 10**6), max_size=12), min_size=1, max_size=3))
def test_they_are_equal_to_the_bit_on_trees_of_any_shape(
    shapes: list[list[int]],
) -> None:
    trees = [
        make_tree(
            [len(shape) % 9, *(number % 9 for number in shape)],
            [NO_PARENT, *(number % (node + 1) for node, number in enumerate(shape))],
        )
        for shape in shapes
    ]
    outputs = [
        verify(verifier, greedy_table(mixing(9), 9), trees)
        for verifier in (TreeAttention(), Sequential())
    ]
    for output, expected in zip(*outputs, strict=True):
        assert torch.equal(output.logits, expected.logits)


@pytest.mark.parametrize("verifier", [TreeAttention(), Sequential()])
def test_a_tree_of_one_node_is_a_plain_step(verifier: AbstractVerifier) -> None:
    tree = root_tree(4, ProposalKind.DETERMINISTIC, torch.device("cpu"))
    (output,) = verify(verifier, greedy_table(mixing(9), 9), [tree])
    assert output.logits.shape == (1, 9)
    assert int(output.logits.argmax()) == mixing(9)((1, 2, 3, 4))
    assert output.hidden is None


def test_tree_attention_takes_one_forward_for_all_requests() -> None:
    model = greedy_table(mixing(9), 9)
    verify(TreeAttention(), model, [random_tree(1, 8, 3, 9, seed) for seed in range(3)])
    assert len(model.forwards) == 1
