"""The best trees under a budget, and no draft forward that could not matter."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.scripts import make_tree
from tests.strategies import repeatable
from treespec.chance import GeneratorChance
from treespec.draft import AbstractDraft
from treespec.errors import TreespecError
from treespec.policies import BestFirst, Situation
from treespec.testing.policy_cases import TEXT, PolicyCase
from treespec.testing.toys import Model, Text, random_model, single
from treespec.tree import NO_PARENT, ROOT, TokenTree, path_logprobs
from treespec.types import Budget

SITUATION = Situation(None, length=3, remaining=64)

VOCAB_SIZE = 3
CHANCE = GeneratorChance(torch.Generator())
WIDE = 99


@dataclass(frozen=True, slots=True)
class Logged(PolicyCase):
    """Notes the paths that the draft is asked about, forward by forward."""

    asked: list[list[Text]] = field(default_factory=list)

    def answer(self, tree: TokenTree, frontier: list[int]) -> AbstractDraft:
        host = tree.host()
        paths = [
            tuple(host.tokens[node] for node in host.path(end)) for end in frontier
        ]
        self.asked.append(paths)
        return PolicyCase.answer(self, tree, frontier)


def case(
    draft: Model,
    max_depth: int,
    max_nodes: int,
    max_width: int = WIDE,
    known: Callable[[Text], bool] | None = None,
) -> Logged:
    budget = Budget(max_depth, max_width, max_nodes)
    return Logged(draft, VOCAB_SIZE, budget, known=known)


def grow(policy: BestFirst, on: PolicyCase) -> TokenTree:
    return on.tree(policy, CHANCE)


def frontiers(policy: BestFirst, on: Logged) -> list[list[Text]]:
    """The paths that the draft was asked about, forward by forward."""
    on.asked.clear()
    grow(policy, on)
    return list(on.asked)


def value(tree: TokenTree) -> float:
    """Expected accepted tokens, if draft probabilities were those of acceptance."""
    return float(path_logprobs(tree)[1:].exp().sum())


def all_paths(draft: Model, max_depth: int) -> dict[Text, float]:
    paths = {}
    for depth in range(1, max_depth + 1):
        for path in product(range(VOCAB_SIZE), repeat=depth):
            probs = [
                float(draft(TEXT + path[:i]).softmax(-1)[path[i]]) for i in range(depth)
            ]
            paths[path] = float(torch.tensor(probs, dtype=torch.float64).prod())
    return paths


def all_trees(paths: dict[Text, float], max_nodes: int) -> Iterator[tuple[Text, ...]]:
    for nodes in combinations(paths, max_nodes):
        if all(len(path) == 1 or path[:-1] in nodes for path in nodes):
            yield nodes


def best_value(draft: Model, max_depth: int, max_nodes: int) -> float:
    paths = all_paths(draft, max_depth)
    trees = all_trees(paths, max_nodes)
    return max(sum(paths[path] for path in tree) for tree in trees)


DEPTHS_AND_NODES = [(1, 2), (2, 1), (2, 4), (2, 5), (3, 3), (3, 4)]


@pytest.mark.parametrize("scope", ["layer", "tree"])
@pytest.mark.parametrize(("max_depth", "max_nodes"), DEPTHS_AND_NODES)
def test_a_wide_search_finds_the_best_of_all_trees(
    max_depth: int, max_nodes: int, scope: str
) -> None:
    for seed in range(6):
        draft = random_model(VOCAB_SIZE, seed)
        policy = BestFirst(max_children=VOCAB_SIZE, beam=WIDE, scope=scope)
        tree = grow(policy, case(draft, max_depth, max_nodes))
        assert tree.num_drafted == max_nodes
        best = best_value(draft, max_depth, max_nodes)
        assert value(tree) == pytest.approx(best, abs=1e-6)


def test_layers_as_wide_as_the_budget_has_nodes_lose_nothing() -> None:
    for seed in range(20):
        draft = random_model(VOCAB_SIZE, seed)
        policy = BestFirst(max_children=VOCAB_SIZE, beam=WIDE)
        tree = grow(policy, case(draft, 3, 4, max_width=4))
        assert value(tree) == pytest.approx(best_value(draft, 3, 4), abs=1e-6)


def test_a_narrow_search_is_never_better_and_a_wider_one_better_on_average() -> None:
    totals = dict.fromkeys((1, 2, 4), 0.0)
    for seed in range(12):
        draft = random_model(VOCAB_SIZE, seed)
        best = sum(sorted(all_paths(draft, 3).values())[-12:])
        for beam in totals:
            found = value(grow(BestFirst(VOCAB_SIZE, beam), case(draft, 3, 12)))
            assert found <= best + 1e-6
            totals[beam] += found
    assert totals[1] < totals[2] < totals[4]


def test_a_node_that_the_beam_had_no_room_for_has_its_turn_later() -> None:
    """The second best child of the root is better than all below the best one."""
    laws = {
        TEXT: (0.5, 0.4, 0.1),
        (*TEXT, 0): (0.34, 0.33, 0.33),
        (*TEXT, 1): (0.9, 0.05, 0.05),
    }

    def draft(text: Text) -> torch.Tensor:
        return torch.tensor(laws.get(text, (0.4, 0.3, 0.3))).log().double()

    on = case(draft, max_depth=3, max_nodes=4)
    assert frontiers(BestFirst(3, 1, "tree"), on)[:3] == [[()], [(0,)], [(1,)]]
    assert frontiers(BestFirst(3, 1, "layer"), on) == [[()], [(0,)], [(0, 0)]]
    tree, layers = (grow(BestFirst(3, 1, scope), on) for scope in ("tree", "layer"))
    assert value(tree) == pytest.approx(0.5 + 0.4 + 0.36 + 0.17, abs=1e-6)
    assert value(layers) == pytest.approx(0.5 + 0.4 + 0.17 + 0.165, abs=1e-6)


@repeatable
@given(
    st.integers(0, 999),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["layer", "tree"]),
    st.sampled_from([1.0, 0.6]),
    st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 12)),
    st.booleans(),
)
def test_what_is_kept_is_the_best_of_what_was_drafted(
    seed: int,
    max_children: int,
    beam: int,
    scope: str,
    decay: float,
    bounds: tuple[int, int, int],
    is_single: bool,
) -> None:
    max_depth, max_width, max_nodes = bounds
    draft = random_model(VOCAB_SIZE, seed, spread=4.0)
    policy = BestFirst(max_children, beam, scope, decay)
    on = case(single(draft) if is_single else draft, max_depth, max_nodes, max_width)
    grown, asked = None, []
    for growth, layer in on.grow(policy, CHANCE):
        grown = growth.tree.extend(layer, growth.frontier)
        assert layer.size <= max_width
        assert growth.frontier.shape[0] <= min(beam, max_width)
        asked += growth.frontier.tolist()
    assert grown is not None
    assert len(set(asked)) == len(asked)
    kept = policy.prune(grown, on.budget, SITUATION).tolist()
    depths = torch.tensor(grown.host().depths())
    paths = path_logprobs(grown) + depths * torch.tensor(decay).log()
    left_out = [node for node in range(grown.size) if node not in kept]
    assert ROOT in kept
    assert len(kept) - 1 == min(max_nodes, grown.num_drafted)
    if left_out:
        assert paths[left_out].max() <= paths[kept].min() + 1e-4
    assert max(grown.host().depths()) <= max_depth


def test_no_forward_is_spent_on_what_could_not_be_kept() -> None:
    """The last kept candidate needs no children: they would be worth no more."""
    flat = single(lambda text: torch.tensor([0.5, 0.3, 0.2]).log())
    policy = BestFirst(3, 8)
    assert frontiers(policy, case(flat, 5, 1)) == [[()]]
    assert frontiers(policy, case(flat, 5, 2)) == [[()], [(0,)]]
    # Below (0,) is 0.25: better than the root's third child, which makes room for it.
    assert frontiers(policy, case(flat, 5, 3)) == [[()], [(0,), (1,)]]
    assert grow(policy, case(flat, 5, 3)).tokens.tolist()[1:] == [0, 1, 0]


def test_a_decay_saves_forwards_that_a_path_is_not_worth() -> None:
    flat = single(lambda text: torch.tensor([1.0, 0.5, 0.0]))
    on = case(flat, 5, 3)
    assert len(frontiers(BestFirst(3, 8, decay=1.0), on)) == 2
    assert len(frontiers(BestFirst(3, 8, decay=0.3), on)) == 1
    assert grow(BestFirst(3, 8, decay=0.3), on).tokens.tolist()[1:] == [0, 1, 2]


def test_growth_stops_when_a_forward_gained_too_little() -> None:
    even = single(lambda text: torch.zeros(3))
    on = case(even, 6, 60)  # the first forward gains 1, the second 1 again, and so on
    assert len(frontiers(BestFirst(3, WIDE), on)) == 4
    assert len(frontiers(BestFirst(3, WIDE, min_gain=0.9), on)) == 4
    assert len(frontiers(BestFirst(3, WIDE, min_gain=1.1), on)) == 1
    sharp = single(lambda text: torch.tensor([0.6, 0.3, 0.1]).log())
    one_path = case(sharp, 6, 60)  # gains 0.6, 0.36, 0.216, ...
    assert len(frontiers(BestFirst(1, 8, min_gain=0.3), one_path)) == 3
    assert len(frontiers(BestFirst(1, 8, min_gain=0.2), one_path)) == 4


def test_fewer_children_and_beams_give_other_trees() -> None:
    even = single(lambda text: torch.tensor([0.2, 0.1, 0.0]))
    on = case(even, 3, 9)
    sizes = {
        (children, beam): max(
            len(below)
            for below in grow(BestFirst(children, beam), on).host().children()
        )
        for children in (1, 2, 3)
        for beam in (1, 2)
    }
    assert [sizes[children, 2] for children in (1, 2, 3)] == [1, 2, 3]
    asked = frontiers(BestFirst(3, 2), on)
    assert [len(nodes) for nodes in asked] == [1, 2, 2]
    assert [len(nodes) for nodes in frontiers(BestFirst(3, 1), on)] == [1, 1, 1]


def test_candidates_that_are_impossible_are_not_drafted() -> None:
    certain = single(lambda text: torch.tensor([0.0, -torch.inf, -torch.inf]))
    tree = grow(BestFirst(3, 8), case(certain, 4, 9))
    assert tree.tokens.tolist()[1:] == [0, 0, 0, 0]


def test_a_node_that_rounding_made_better_than_its_parent_does_not_replace_it() -> None:
    """Pruning left an orphan.

    Sums along two paths are rounded differently, and the log-probability of a certain
    token may come out above 0.
    """
    tree = make_tree([1, 0, 0, 0], [NO_PARENT, 0, 1, 2])
    rounded = torch.tensor([0.0, -1.0, 1e-6, 1e-6])
    tree = replace(tree, draft_logprobs=rounded)
    for max_nodes in (1, 2, 3):
        kept = BestFirst().prune(tree, Budget(3, 3, max_nodes), SITUATION)
        assert kept.tolist() == list(range(max_nodes + 1))


def test_nodes_of_which_nothing_is_known_are_asked_once() -> None:
    def known(text: Text) -> bool:
        return len(text) == len(TEXT) or text[-1] != 1

    on = case(random_model(VOCAB_SIZE, 5), 5, 9, known=known)
    asked = [node for nodes in frontiers(BestFirst(3, 1), on) for node in nodes]
    assert len(set(asked)) == len(asked) == 5
    assert any(path[-1:] == (1,) for path in asked)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_children": 0}, r"policy\.max_children must be an integer >= 1, got 0"),
        ({"beam": 0.5}, r"policy\.beam must be an integer >= 1, got 0\.5"),
        ({"scope": "layers"}, r"policy\.scope=layers.*layer, tree"),
        ({"decay": 0.0}, r"policy\.decay must be in \(0, 1\], got 0\.0"),
        ({"decay": 1.5}, r"policy\.decay"),
        ({"min_gain": -0.1}, r"policy\.min_gain must be >= 0, got -0\.1"),
        ({"min_gain": float("nan")}, r"policy\.min_gain"),
    ],
)
def test_an_impossible_option_is_refused(
    arguments: dict[str, object], told: str
) -> None:
    with pytest.raises(TreespecError, match=told):
        BestFirst(**arguments)
