"""Shapes of static trees: what is one, and which are worth most."""

import time
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.costs import Costs
from treespec.errors import TreespecError
from treespec.policies import geometric_tree
from treespec.policies.optimal_shape import optimal_shape, plan, planned_shape
from treespec.policies.shape import (
    TreeShape,
    comb_shape,
    cut,
    greedy_shape,
    path_value,
    paths_shape,
    widths_shape,
)
from treespec.types import Budget

repeatable = settings(derandomize=True, deadline=None, max_examples=40)

FALLING = [[0.6, 0.15, 0.1, 0.05]]
SECOND_IS_BETTER = [[0.05, 0.6, 0.2, 0.1]]
LAST_IS_BEST = [[0.0, 0.0, 0.9]]
BY_DEPTH = [[0.7, 0.2, 0.05], [0.3, 0.25, 0.2], [0.1, 0.5, 0.0]]
VECTORS = [FALLING, SECOND_IS_BETTER, LAST_IS_BEST, BY_DEPTH, [[0.9]]]
SEQUOIA_COSTS = Costs.through(
    target_s={1: 10, 2: 10, 4: 10, 8: 12, 16: 14, 32: 18}, draft_s={1: 0.3}
)
"""The published demonstration's, in its own unit of time."""

Nested = tuple["Nested", ...]
"""A tree as its children in order of rank."""


@cache
def forests(size: int, depth: int) -> tuple[Nested, ...]:
    """Every ordered row of trees with ``size`` nodes in all."""
    if size == 0:
        return ((),)
    if depth == 0:
        return ()
    return tuple(
        (first, *rest)
        for of_first in range(1, size + 1)
        for first in forests(of_first - 1, depth - 1)
        for rest in forests(size - of_first, depth)
    )


def worth(children: Nested, acceptance: list[list[float]], depth: int = 0) -> float:
    """Expected tokens below and at a node, straight from the definition."""
    row = acceptance[min(depth, len(acceptance) - 1)]
    if len(children) > len(row):
        return 0.0
    below = (worth(child, acceptance, depth + 1) for child in children)
    return 1 + sum(a * tokens for a, tokens in zip(row, below, strict=False))


def best_by_force(acceptance: list[list[float]], num_nodes: int, depth: int) -> float:
    return max(
        worth(children, acceptance)
        for size in range(num_nodes + 1)
        for children in forests(size, depth)
    )


def test_all_trees_are_enumerated() -> None:
    """As many as the Catalan numbers say."""
    assert [len(forests(size, 9)) for size in range(9)] == [
        1, 1, 2, 5, 14, 42, 132, 429, 1430,
    ]  # fmt: skip


@pytest.mark.parametrize("acceptance", VECTORS, ids=str)
@pytest.mark.parametrize("depth", [1, 2, 3, 8])
def test_the_optimal_shape_is_the_best_of_all_trees(
    acceptance: list[list[float]], depth: int
) -> None:
    for num_nodes in range(1, 9):
        wanted = best_by_force(acceptance, num_nodes, depth)
        if wanted == 1:
            with pytest.raises(TreespecError, match="none is better than no tree"):
                optimal_shape(acceptance, num_nodes, depth)
            continue
        shape = optimal_shape(acceptance, num_nodes, depth)
        assert shape.expected_tokens(acceptance) == pytest.approx(wanted, abs=1e-12)
        assert shape.num_nodes <= num_nodes
        assert shape.depth <= depth


def test_a_rank_that_is_never_accepted_may_lead_to_one_that_is() -> None:
    """Growing greedily would not see behind it; the program does."""
    shape = optimal_shape(LAST_IS_BEST, 6, 4)
    assert shape.expected_tokens(LAST_IS_BEST) == pytest.approx(1 + 0.9 + 0.81)
    assert set(shape.paths) == {(0,), (1,), (2,), (2, 0), (2, 1), (2, 2)}
    greedy = greedy_shape(LAST_IS_BEST, 6, 4, 3)
    assert greedy.expected_tokens(LAST_IS_BEST) < 2.5


falling_tables = st.lists(
    st.lists(st.integers(0, 9), min_size=3, max_size=3).map(
        lambda row: [n / 30 for n in sorted(row, reverse=True)]
    ),
    min_size=1,
    max_size=3,
).filter(lambda table: table[0][0] > 0)


@repeatable
@given(falling_tables, st.integers(1, 24), st.integers(1, 5))
def test_where_acceptance_falls_with_the_rank_medusas_tree_is_optimal(
    acceptance: list[list[float]], num_nodes: int, depth: int
) -> None:
    """Both maximise the sum of path products; Medusa's only needs no foresight then."""
    best = optimal_shape(acceptance, num_nodes, depth)
    greedy = greedy_shape(acceptance, num_nodes, depth, 3)
    assert greedy.expected_tokens(acceptance) == pytest.approx(
        best.expected_tokens(acceptance), abs=1e-12
    )


@repeatable
@given(falling_tables, st.integers(1, 30), st.integers(1, 3), st.integers(1, 3))
def test_medusas_tree_holds_the_largest_path_products(
    acceptance: list[list[float]], num_nodes: int, max_depth: int, max_children: int
) -> None:
    every = [
        path
        for depth in range(1, max_depth + 1)
        for path in product(range(max_children), repeat=depth)
    ]
    largest = sorted((path_value(acceptance, path) for path in every), reverse=True)
    shape = greedy_shape(acceptance, num_nodes, max_depth, max_children)
    found = [path_value(acceptance, path) for path in shape.paths]
    assert found == pytest.approx(largest[:num_nodes], abs=1e-12)


tables = st.lists(
    st.lists(st.integers(0, 9), min_size=3, max_size=3).map(
        lambda row: [n / 30 for n in row]
    ),
    min_size=1,
    max_size=3,
).filter(lambda table: table[0][0] > 0)


@repeatable
@given(tables, st.integers(3, 20), st.integers(1, 4))
def test_more_nodes_and_more_depth_never_commit_less(
    acceptance: list[list[float]], num_nodes: int, depth: int
) -> None:
    here = optimal_shape(acceptance, num_nodes, depth).expected_tokens(acceptance)
    wider = optimal_shape(acceptance, num_nodes + 1, depth).expected_tokens(acceptance)
    deeper = optimal_shape(acceptance, num_nodes, depth + 1).expected_tokens(acceptance)
    assert min(wider, deeper) >= here - 1e-12


@repeatable
@given(tables, st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_the_optimal_shape_commits_no_less_than_k_ary_trees_and_chains(
    acceptance: list[list[float]], widths: list[int]
) -> None:
    regular = widths_shape(widths)
    best = optimal_shape(acceptance, regular.num_nodes, regular.depth)
    assert best.expected_tokens(acceptance) >= (
        regular.expected_tokens(acceptance) - 1e-12
    )


def test_sequoias_published_setting_is_solved_and_beats_the_other_trees() -> None:
    """Depth 10, 128 nodes: no expected length is published for it, so compare."""
    acceptance = [[0.5 * 0.5**rank for rank in range(32)]]
    started_s = time.perf_counter()
    shape = optimal_shape(acceptance, 127, 10)
    assert time.perf_counter() - started_s < 2  # 0.03 s on an idle core
    found = shape.expected_tokens(acceptance)
    assert found == pytest.approx(4.5)
    others = [
        greedy_shape(acceptance, 127, 10, 32),
        widths_shape([2] * 6),
        widths_shape([5, 4, 4, 1]),
        widths_shape([1] * 10),
    ]
    assert all(other.expected_tokens(acceptance) <= found + 1e-12 for other in others)


def test_sequoias_costs_choose_the_size_and_the_depth_of_least_time_per_token() -> None:
    acceptance = [[0.5 * 0.5**rank for rank in range(32)]]
    chosen = planned_shape(acceptance, SEQUOIA_COSTS, 10)
    by_hand = {}
    for rows in SEQUOIA_COSTS.target_curve.rows:
        for depth in range(1, 11) if rows > 1 else ():
            shape = optimal_shape(acceptance, rows - 1, depth)
            tokens = shape.expected_tokens(acceptance)
            step_s = shape.depth * 0.3 + SEQUOIA_COSTS.target(1 + shape.num_nodes)
            by_hand[rows, depth] = (step_s / tokens, step_s, tokens)
            assert SEQUOIA_COSTS.target(rows) >= 10
    best = min(by_hand.values())
    assert (chosen.token_s, chosen.step_s, chosen.expected_tokens) == pytest.approx(
        best
    )
    assert chosen.shape.num_nodes == 15
    assert chosen.token_s < 10  # plain decoding


def test_a_dear_draft_makes_trees_shallow_and_a_dear_target_makes_them_small() -> None:
    acceptance = [[0.6, 0.2, 0.1]]
    cheap = planned_shape(acceptance, Costs.through({2: 1, 33: 1}, {1: 0.001}), 8)
    dear_draft = planned_shape(acceptance, Costs.through({2: 1, 33: 1}, {1: 1}), 8)
    dear_rows = planned_shape(acceptance, Costs.through({2: 1, 33: 20}, {1: 0.001}), 8)
    assert dear_draft.shape.depth < cheap.shape.depth
    assert dear_rows.shape.num_nodes == 1 < cheap.shape.num_nodes == 32


def test_a_plan_pays_for_every_expansion_as_wide_as_it_is() -> None:
    costs = Costs.through({1: 10, 5: 14}, {1: 1, 3: 5})
    shape = paths_shape([[0], [1], [0, 0], [1, 0]])
    planned = plan(shape, [[0.5, 0.25]], costs)
    assert planned.step_s == pytest.approx(14 + 1 + 3)  # widths 1 and 2
    assert planned.expected_tokens == pytest.approx(1 + 0.75 + 0.25 + 0.125)


def test_costs_without_trees_choose_none() -> None:
    with pytest.raises(TreespecError, match="no size from 2 to 1024 rows"):
        planned_shape(FALLING, Costs.through({1: 1.0}, {1: 1.0}), 4)


def test_widths_give_each_node_so_many_children() -> None:
    shape = widths_shape([2, 1, 2])
    assert (shape.num_nodes, shape.depth, shape.width) == (8, 3, 4)
    assert (shape.max_children, shape.expansions()) == (2, [1, 2, 2])
    assert shape.paths[:3] == ((0,), (1,), (0, 0))


def test_a_comb_has_siblings_along_a_line_only() -> None:
    shape = comb_shape(3, 2)
    assert set(shape.paths) == {(0,), (1,), (2,), (0, 0), (0, 1), (0, 2)}
    assert shape.expansions() == [1, 1]


budgets = st.builds(Budget, st.integers(0, 5), st.integers(1, 6), st.integers(0, 12))


@repeatable
@given(budgets, st.sampled_from([widths_shape([3, 2, 1]), comb_shape(3, 4)]))
def test_a_budget_cuts_a_shape_to_a_tree_that_fits(
    budget: Budget, shape: TreeShape
) -> None:
    kept = cut(shape, budget)
    if kept:
        cut_shape = TreeShape(kept)  # parents and siblings are there, or this raises
        assert cut_shape.depth <= budget.max_depth
        assert cut_shape.width <= budget.max_width
    else:
        assert not budget.speculates
    assert len(kept) <= budget.max_nodes


def test_what_is_cut_off_is_the_least_valuable() -> None:
    shape = paths_shape([[0], [0, 0], [1], [0, 0, 0], [1, 0]])
    assert cut(shape, Budget(9, 9, 3)) == ((0,), (0, 0), (1,))
    assert cut(shape, Budget(2, 9, 9)) == ((0,), (0, 0), (1,), (1, 0))
    assert cut(shape, Budget(9, 1, 9)) == ((0,), (0, 0), (0, 0, 0))
    orphan = paths_shape([[0], [1], [1, 0]])
    assert cut(orphan, Budget(9, 1, 9)) == ((0,),)


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ([], "must be a list of lists of ranks >= 0"),
        ([[]], "must be a list of lists of ranks >= 0"),
        ("0", "must be a list of lists of ranks >= 0"),
        ([0, 1], "must be a list of lists of ranks >= 0"),
        ([[0], [-1]], "must be a list of lists of ranks >= 0"),
        ([[0], [True]], "must be a list of lists of ranks >= 0"),
        ([[0], [0]], r"has \[0\] twice"),
        ([[1], [0]], r"has \[1\] without \[0\] before it"),
        ([[0, 0], [0]], r"has \[0, 0\] without \[0\] before it"),
    ],
)
def test_paths_that_are_no_tree_are_refused(paths: object, told: str) -> None:
    with pytest.raises(TreespecError, match=r"policy\.paths.*" + told):
        paths_shape(paths)


def test_a_tree_is_planned_though_small_ones_hold_nothing() -> None:
    """Rank 0 was never accepted, rank 1 was: one node is no use, two are."""
    costs = Costs.through({1: 0.010, 2: 0.011, 4: 0.012, 8: 0.020}, {1: 0.001})
    chosen = planned_shape([[0.0, 0.2, 0.1]], costs, 3)
    assert chosen.shape.num_nodes > 1
    assert chosen.expected_tokens > 1


@pytest.mark.parametrize("widths", [[], [0], [2, -1], [1.5], None, 3, [2, "a"]])
def test_widths_that_are_no_numbers_of_children_are_refused(widths: list[int]) -> None:
    with pytest.raises(TreespecError, match=r"policy\.widths"):
        widths_shape(widths)


@pytest.mark.parametrize(
    "make",
    [
        lambda: widths_shape([40, 40]),
        lambda: greedy_shape(FALLING, 5000, 9, 4),
        lambda: optimal_shape(FALLING, 5000, 9),
        lambda: comb_shape(50, 50),
        lambda: comb_shape(65, 1),
        lambda: optimal_shape(FALLING, 5, 65),
        lambda: planned_shape(FALLING, SEQUOIA_COSTS, 3000),
        lambda: geometric_tree(5, 2, 10**9, 0.5, 0.5),
    ],
)
def test_a_slip_that_would_make_a_giant_is_refused(make) -> None:
    with pytest.raises(TreespecError, match=r"must be at most (1024|64), got"):
        make()


@pytest.mark.parametrize(
    ("acceptance", "told"),
    [
        ([], "at least one depth"),
        ([[]], "must be probabilities"),
        ([[0.5], [0.5, 0.1]], "same number of ranks"),
        ([[0.7, 0.7]], "sum of at most 1"),
        ([[-0.1]], "must be probabilities"),
        ([[float("nan")]], "must be probabilities"),
    ],
)
def test_acceptance_that_is_none_is_refused(
    acceptance: list[list[float]], told: str
) -> None:
    with pytest.raises(TreespecError, match=told):
        optimal_shape(acceptance, 4, 4)


def test_a_shape_wider_than_what_was_measured_has_no_expectation() -> None:
    with pytest.raises(TreespecError, match="measure more ranks"):
        comb_shape(5, 1).expected_tokens([[0.5, 0.2]])
