from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import CPU, layers, parent_lists, repeatable, token_trees
from treespec.tree import (
    NO_PARENT,
    NOT_EXPANDED,
    ROOT,
    Layer,
    TokenTree,
    ancestor_mask,
    node_depths,
    path_logprobs,
    path_minima,
    path_sums,
    root_tree,
)
from treespec.types import ProposalKind


def walk_up(parents: list[int], node: int) -> list[int]:
    """The node, its parent, and so on to the root."""
    nodes = [node]
    while parents[nodes[-1]] != NO_PARENT:
        nodes.append(parents[nodes[-1]])
    return nodes


def chain_parents(size: int) -> list[int]:
    return list(range(-1, size - 1))


@repeatable
@given(parent_lists())
def test_ancestor_mask_equals_a_naive_walk(parents: list[int]) -> None:
    mask = ancestor_mask(torch.tensor(parents))
    for node in range(len(parents)):
        seen = set(mask[node].nonzero().flatten().tolist())
        assert seen == set(walk_up(parents, node))


def test_ancestor_mask_of_a_chain_reaches_the_root_at_every_length() -> None:
    for size in range(1, 40):
        mask = ancestor_mask(torch.tensor(chain_parents(size)))
        assert mask.equal(torch.ones(size, size, dtype=torch.bool).tril())


@repeatable
@given(parent_lists())
def test_depth_is_the_number_of_steps_to_the_root(parents: list[int]) -> None:
    expected = [len(walk_up(parents, node)) - 1 for node in range(len(parents))]
    assert node_depths(torch.tensor(parents)).tolist() == expected


@repeatable
@given(token_trees())
def test_path_logprob_is_the_sum_along_the_path(tree: TokenTree) -> None:
    parents = tree.parents.tolist()
    logprobs = tree.draft_logprobs.tolist()
    for node, total in enumerate(path_logprobs(tree).tolist()):
        expected = sum(logprobs[above] for above in walk_up(parents, node))
        assert abs(total - expected) < 1e-4


@repeatable
@given(parent_lists())
def test_a_tree_that_grows_carries_on_what_its_paths_are_worth(
    parents: list[int],
) -> None:
    """And one that was made in another way finds it anew, never the old one's."""
    tree = root_tree(0, ProposalKind.DETERMINISTIC, CPU)
    for node, parent in enumerate(parents[1:], start=1):
        path_logprobs(tree)
        above, value = torch.tensor([parent]), torch.tensor([-float(node % 5)])
        grown = tree.extend(Layer(above, above, value, above), above)
        tree = grown.end(above) if node % 3 == 0 else grown
    logprobs, nodes = tree.draft_logprobs, torch.arange(tree.size)
    assert path_logprobs(tree).equal(path_sums(logprobs, tree.parents))
    other = replace(tree, draft_logprobs=2 * logprobs)
    assert path_logprobs(other).equal(path_sums(2 * logprobs, tree.parents))
    few = tree.select(nodes[: tree.size // 2 + 1])
    assert path_logprobs(few).equal(path_logprobs(tree)[: few.size])


def test_an_impossible_token_spoils_no_path_but_its_own() -> None:
    """A draft with a smaller vocabulary proposes tokens of log-probability -inf.

    As a matrix product of mask and log-probabilities, 0 * -inf made every path NaN.
    """
    layer = Layer(
        parents=torch.tensor([0, 0]),
        tokens=torch.tensor([1, 2]),
        draft_logprobs=torch.tensor([-1.0, -torch.inf]),
        sources=torch.zeros(2, dtype=torch.int64),
    )
    root = root_tree(0, ProposalKind.DETERMINISTIC, CPU)
    tree = root.extend(layer, frontier=torch.tensor([ROOT]))
    assert path_logprobs(tree).tolist() == [0.0, -1.0, -torch.inf]


@repeatable
@given(parent_lists())
def test_least_and_sum_along_a_path_are_those_of_a_walk(parents: list[int]) -> None:
    values = torch.tensor([0.0, *(float((7 * i) % 5 - 3) for i in parents[1:])])
    walks = [walk_up(parents, node) for node in range(len(parents))]
    deepest = max(len(walk) for walk in walks) - 1
    for max_depth in (None, deepest, deepest + 3):
        sums = path_sums(values, torch.tensor(parents), max_depth)
        minima = path_minima(values, torch.tensor(parents), max_depth)
        assert sums.tolist() == [float(values[walk].sum()) for walk in walks]
        assert minima.tolist() == [float(values[walk].min()) for walk in walks]


def test_a_tree_knows_who_was_asked_about_whatever_was_answered() -> None:
    """Without a law as well: a node must not be expanded a second time."""
    tree = root_tree(3, ProposalKind.DETERMINISTIC, CPU)
    nothing = torch.zeros(0, dtype=torch.int64)
    two = torch.tensor([0, 0])
    tree = tree.extend(Layer(two, two, two.float(), two), torch.tensor([ROOT]))
    assert tree.is_expanded.tolist() == [True, False, False]
    empty = Layer(nothing, nothing, nothing.float(), nothing)
    tree = tree.extend(empty, torch.tensor([2]))
    assert tree.is_expanded.tolist() == [True, False, True]
    assert tree.draft_rows.tolist() == [0, -1, 1]


@repeatable
@given(st.data())
def test_extend_keeps_order_rows_and_the_old_tree(data: st.DataObject) -> None:
    tree = root_tree(3, ProposalKind.WITH_REPLACEMENT, CPU)
    laws: dict[int, torch.Tensor] = {}
    unexpanded = [ROOT]
    for _ in range(3):
        frontier = data.draw(st.lists(st.sampled_from(unexpanded), unique=True))
        layer = data.draw(layers(tree.size, len(frontier)))
        before = (tree.tokens.clone(), tree.parents.clone(), tree.draft_rows.clone())
        size = tree.size
        bigger = tree.extend(layer, torch.tensor(frontier, dtype=torch.int64))

        assert tree.tokens.equal(before[0])
        assert tree.parents.equal(before[1])
        assert tree.draft_rows.equal(before[2])
        assert bigger.size == size + layer.size
        assert bigger.num_drafted == bigger.size - 1
        assert bigger.tokens[size:].equal(layer.tokens)
        assert bigger.sources[size:].equal(layer.sources)
        parents = bigger.parents.tolist()
        assert parents[ROOT] == NO_PARENT
        assert all(0 <= parents[node] < node for node in range(1, bigger.size))

        assert layer.draft_probs is not None
        laws |= {node: layer.draft_probs[i] for i, node in enumerate(frontier)}
        for node, row in enumerate(bigger.draft_rows.tolist()):
            if node in laws:
                assert bigger.draft_probs is not None
                assert bigger.draft_probs[row].equal(laws[node])
            else:
                assert row == NOT_EXPANDED
        unexpanded = [node for node in range(bigger.size) if node not in laws]
        tree = bigger
        if not unexpanded:
            break


def test_extend_shares_no_memory_with_what_it_was_given() -> None:
    """A drafter may reuse its buffers for the next layer (Jikai0Wang/OPT-Tree)."""
    layer = Layer(
        parents=torch.tensor([0]),
        tokens=torch.tensor([1]),
        draft_logprobs=torch.tensor([-1.0]),
        sources=torch.tensor([0]),
        draft_probs=torch.tensor([[0.25, 0.75]]),
    )
    root = root_tree(0, ProposalKind.WITH_REPLACEMENT, CPU)
    tree = root.extend(layer, frontier=torch.tensor([ROOT]))
    assert layer.draft_probs is not None
    for given_tensor in (layer.parents, layer.tokens, layer.sources):
        given_tensor.fill_(9)
    layer.draft_logprobs.fill_(9)
    layer.draft_probs.fill_(9)
    for old in (root.tokens, root.parents, root.draft_rows, root.draft_logprobs):
        old.fill_(9)
    assert tree.tokens.tolist() == [0, 1]
    assert tree.parents.tolist() == [-1, 0]
    assert tree.sources.tolist() == [0, 0]
    assert tree.draft_rows.tolist() == [0, -1]
    assert tree.draft_logprobs.tolist() == [0, -1]
    assert tree.draft_probs is not None
    assert tree.draft_probs.tolist() == [[0.25, 0.75]]


@repeatable
@given(token_trees())
def test_host_tree_agrees_with_the_tree_it_copies(tree: TokenTree) -> None:
    host = tree.host()
    assert host.tokens == tree.tokens.tolist()
    assert host.parents == tree.parents.tolist()
    assert host.sources == tree.sources.tolist()
    assert host.draft_rows == tree.draft_rows.tolist()
    assert host.depths() == node_depths(tree.parents).tolist()


@repeatable
@given(token_trees())
def test_children_ranks_and_leaves_give_back_the_parents(tree: TokenTree) -> None:
    host = tree.host()
    children, ranks = host.children(), host.ranks()
    parents = [NO_PARENT] * tree.size
    for node, below in enumerate(children):
        assert below == sorted(below)  # draw order
        for rank, child in enumerate(below):
            parents[child] = node
            assert ranks[child] == rank
    assert parents == host.parents
    assert ranks[ROOT] == 0
    assert host.leaves() == sorted(set(range(tree.size)) - set(host.parents))


@repeatable
@given(token_trees())
def test_a_path_runs_from_below_the_root_to_its_node(tree: TokenTree) -> None:
    host = tree.host()
    for node in range(tree.size):
        upwards = walk_up(host.parents, node)
        assert host.path(node) == upwards[::-1][1:]
