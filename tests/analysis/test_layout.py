"""A tidy tree is tidy, whatever the tree."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import parent_lists, repeatable
from treespec.analysis.layout import ASCII, children_of, outline, tidy_tree

CLOSE = 1e-9


def by_depth(parents):
    """Nodes of each depth in the order in which a walk through the tree meets them."""
    depths, order = tidy_tree(parents).y, [row.node for row in outline(parents)]
    return [[n for n in order if depths[n] == d] for d in range(max(depths) + 1)]


@repeatable
@given(parent_lists(max_nodes=64))
def test_nodes_of_one_depth_stand_in_order_and_apart(parents):
    """So no two nodes overlap and, with the order of the parents, no branches cross."""
    x = tidy_tree(parents).x
    for level in by_depth(parents):
        for left, right in pairwise(level):
            assert x[right] - x[left] >= 1 - CLOSE


@repeatable
@given(parent_lists(max_nodes=64))
def test_a_parent_stands_in_the_middle_of_its_children(parents):
    x = tidy_tree(parents).x
    for node, children in enumerate(children_of(parents)):
        if children:
            assert abs(x[node] - (x[children[0]] + x[children[-1]]) / 2) < CLOSE


@repeatable
@given(parent_lists(max_nodes=64))
def test_a_drawing_begins_at_zero_and_is_as_deep_as_the_tree(parents):
    layout = tidy_tree(parents)
    assert min(layout.x) == 0
    assert layout.y[0] == 0
    for node, parent in enumerate(parents[1:], start=1):
        assert layout.y[node] == layout.y[parent] + 1


@repeatable
@given(parent_lists(max_nodes=12))
def test_equal_subtrees_are_drawn_alike(parents):
    size = len(parents)
    moved = [0 if parent < 0 else parent + 1 for parent in parents]
    twice = [-1, *moved, *(0 if parent == 0 else parent + size for parent in moved)]
    x = tidy_tree(twice).x
    first, second = x[1 : size + 1], x[size + 1 :]
    shift = second[0] - first[0]
    assert all(abs(b - a - shift) < 1e-6 for a, b in zip(first, second, strict=True))


@repeatable
@given(st.integers(1, 40))
def test_siblings_without_children_stand_side_by_side(count):
    """No wider than it must be: a drawing with gaps would pass everything above."""
    layout = tidy_tree([-1, *[0] * count])
    assert layout.x[1:] == tuple(range(count))
    assert layout.x[0] == (count - 1) / 2


def test_a_chain_is_straight_and_may_be_long():
    layout = tidy_tree([-1, *range(1200)])
    assert set(layout.x) == {0}
    assert len(outline([-1, *range(1200)])) == 1201


def test_small_subtrees_move_under_their_neighbours():
    r"""The deep first child does not push the flat second one aside.

        0
       / \
      1   2
     /   / \
    3   4   5
    """
    assert tidy_tree([-1, 0, 0, 1, 2, 2]).x == (0.75, 0.0, 1.5, 0.0, 1.0, 2.0)


@repeatable
@given(parent_lists())
def test_an_outline_tells_the_tree(parents):
    rows = outline(parents, ASCII)
    assert sorted(row.node for row in rows) == list(range(len(parents)))
    open_nodes: list[int] = []
    for row in rows:
        depth = len(row.branch) // 3
        del open_nodes[depth:]
        assert parents[row.node] == (open_nodes[-1] if open_nodes else -1)
        open_nodes.append(row.node)


def test_an_empty_tree_has_no_places():
    assert tidy_tree([]).x == ()
    assert outline([]) == []
