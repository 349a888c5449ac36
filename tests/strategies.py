"""Hypothesis strategies shared by the property tests."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

from treespec.tree import NO_PARENT, Layer, TokenTree, root_tree
from treespec.types import ProposalKind

VOCAB_SIZE = 7
CPU = torch.device("cpu")

repeatable = settings(derandomize=True, deadline=None, max_examples=60)
"""The same examples on every run and every machine."""


@st.composite
def parent_lists(draw: st.DrawFn, max_nodes: int = 24) -> list[int]:
    """Parents of a random tree: every node hangs below any earlier one."""
    size = draw(st.integers(1, max_nodes))
    above = [draw(st.integers(0, node - 1)) for node in range(1, size)]
    return [NO_PARENT, *above]


@st.composite
def token_trees(draw: st.DrawFn, max_nodes: int = 24) -> TokenTree:
    """A random deterministic tree, as one layer below its root."""
    parents = draw(parent_lists(max_nodes))
    num_drafted = len(parents) - 1
    tokens = st.lists(
        st.integers(0, VOCAB_SIZE - 1), min_size=num_drafted, max_size=num_drafted
    )
    logprobs = st.lists(
        st.floats(-9, 0, width=32), min_size=num_drafted, max_size=num_drafted
    )
    tree = root_tree(
        draw(st.integers(0, VOCAB_SIZE - 1)), ProposalKind.DETERMINISTIC, CPU
    )
    layer = Layer(
        parents=torch.tensor(parents[1:], dtype=torch.int64),
        tokens=torch.tensor(draw(tokens), dtype=torch.int64),
        draft_logprobs=torch.tensor(draw(logprobs)),
        sources=torch.zeros(num_drafted, dtype=torch.int64),
    )
    return tree.extend(layer, frontier=torch.tensor([0]))


@st.composite
def layers(draw: st.DrawFn, size: int, frontier_size: int) -> Layer:
    """A random sampled layer below any nodes of a tree with ``size`` nodes."""
    num_new = draw(st.integers(0, 5))
    parents = [draw(st.integers(0, size - 1)) for _ in range(num_new)]
    tokens = [draw(st.integers(0, VOCAB_SIZE - 1)) for _ in range(num_new)]
    probs = torch.full((frontier_size, VOCAB_SIZE), 1 / VOCAB_SIZE)
    return Layer(
        parents=torch.tensor(parents, dtype=torch.int64),
        tokens=torch.tensor(tokens, dtype=torch.int64),
        draft_logprobs=torch.full((num_new,), -1.0),
        sources=torch.full((num_new,), draw(st.integers(0, 2))),
        draft_probs=probs * draw(st.floats(0.5, 1)),  # told apart by their scale
    )
