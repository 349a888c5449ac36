import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from tests.strategies import CPU, VOCAB_SIZE, repeatable, token_trees
from treespec.acceptance import (
    AbstractAcceptanceRule,
    BlockVerification,
    ChainSpeculative,
    Greedy,
    RejectionWithoutReplacement,
    SampleAndMatch,
    Siblings,
    TraversalVerification,
    TypicalAcceptance,
    recover,
)
from treespec.chance import AbstractChance, GeneratorChance
from treespec.errors import NumericalError, TreespecError
from treespec.sampling import Sampling
from treespec.testing.laws import Setting, play_round
from treespec.testing.toys import constant_model, random_model
from treespec.tree import ROOT, Layer, TokenTree, root_tree
from treespec.types import ProposalKind

GREEDY = Sampling()
PLAIN = Sampling(1.0)


class NoChance(AbstractChance):
    """Fails when a rule that should be certain asks for luck."""

    def accepts(self, probability: Tensor) -> bool:
        raise AssertionError("asked for luck")

    def draw(self, probs: Tensor) -> Tensor:
        raise AssertionError("asked for luck")

    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        raise AssertionError("asked for luck")


def seeded(seed: int) -> GeneratorChance:
    return GeneratorChance(torch.Generator().manual_seed(seed))


def tree_of(
    parents: list[int],
    tokens: list[int],
    proposal: ProposalKind = ProposalKind.DETERMINISTIC,
    draft_probs: Tensor | None = None,
) -> TokenTree:
    """A tree below token 0 as one layer; ``draft_probs`` is the root's law."""
    layer = Layer(
        parents=torch.tensor(parents),
        tokens=torch.tensor(tokens),
        draft_logprobs=torch.zeros(len(tokens)),
        sources=torch.zeros(len(tokens), dtype=torch.int64),
        draft_probs=draft_probs,
    )
    return root_tree(0, proposal, CPU).extend(layer, frontier=torch.tensor([ROOT]))


def logits_for(*best: int, vocab_size: int = 6) -> Tensor:
    """Logits whose argmax at node i is the i-th token given."""
    return torch.eye(vocab_size)[torch.tensor(best)]


@repeatable
@given(tree=token_trees(), seed=st.integers(0, 99))
def test_greedy_on_any_tree_is_a_prefix_of_what_the_target_says(
    tree: TokenTree, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tree.size, VOCAB_SIZE, generator=generator)
    best = logits.argmax(dim=-1).tolist()
    acceptance = Greedy().accept(tree, logits, GREEDY, NoChance())

    host = tree.host()
    node = ROOT
    for accepted in acceptance.node_ids:
        assert host.parents[accepted] == node
        assert host.tokens[accepted] == best[node]
        node = accepted
    assert acceptance.next_token == best[node]
    same_text = [
        other
        for other in range(tree.size)
        if [host.tokens[above] for above in host.path(other)]
        == [host.tokens[above] for above in acceptance.node_ids]
    ]
    below = [child for other in same_text for child in host.children()[other]]
    assert acceptance.next_kind == ("recovered" if below else "bonus")


@repeatable
@given(tree=token_trees(), seed=st.integers(0, 99))
def test_sample_and_match_at_temperature_0_is_greedy(
    tree: TokenTree, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tree.size, VOCAB_SIZE, generator=generator)
    greedy = Greedy().accept(tree, logits, GREEDY, NoChance())
    assert SampleAndMatch().accept(tree, logits, GREEDY, seeded(seed)) == greedy


def test_greedy_keeps_no_token_that_is_only_likely() -> None:
    """litgpt keeps a draft's argmax with p >= q at temperature 0."""
    logits = torch.tensor([[0.0, 1.0, 0.9], [0.0, 0.0, 1.0]])
    acceptance = Greedy().accept(tree_of([0], [2]), logits, GREEDY, NoChance())
    assert acceptance.node_ids == ()
    assert acceptance.next_token == 1
    assert acceptance.next_kind == "recovered"


def test_greedy_takes_the_first_of_tied_tokens_as_argmax_does() -> None:
    logits = torch.zeros(2, 5)
    logits[0, [2, 4]] = 1.0
    acceptance = Greedy().accept(tree_of([0], [4]), logits, GREEDY, NoChance())
    assert acceptance.next_token == int(logits[0].argmax()) == 2


def test_siblings_with_one_token_count_as_one() -> None:
    """Two n-gram hits with the same token: the second one's child still counts."""
    tree = tree_of([0, 0, 2, 3], [4, 4, 1, 5])
    acceptance = Greedy().accept(tree, logits_for(4, 1, 1, 5, 3), GREEDY, NoChance())
    assert acceptance.node_ids == (2, 3, 4)
    assert acceptance.next_token == 3
    assert acceptance.next_kind == "bonus"


def test_below_merged_siblings_the_ending_is_recovered_if_any_has_children() -> None:
    tree = tree_of([0, 0, 2], [4, 4, 1])
    acceptance = Greedy().accept(tree, logits_for(4, 3, 3, 0), GREEDY, NoChance())
    assert acceptance.node_ids == (1,)
    assert acceptance.next_kind == "recovered"


def test_of_merged_siblings_the_one_whose_path_is_kept_says_what_follows() -> None:
    """Rows of equal texts may differ by rounding."""
    tree = tree_of([0, 0], [4, 4])
    acceptance = Greedy().accept(tree, logits_for(4, 3, 2), GREEDY, NoChance())
    assert acceptance.node_ids == (1,)
    assert acceptance.next_token == 3


@pytest.mark.parametrize("seed", range(5))
def test_sample_and_match_writes_the_text_of_autoregressive_decoding(seed: int) -> None:
    """One draw per committed token: the same seed gives the same text, tree or not."""
    target, draft = random_model(5, seed=1), random_model(5, seed=1, spread=1.2)
    texts = []
    for widths in [(), (2, 2, 1)]:
        setting = Setting(target, draft, ProposalKind.DETERMINISTIC, widths, PLAIN)
        chance, text, num_rounds = seeded(seed), (0,), 0
        while len(text) < 30:
            text += play_round(SampleAndMatch(), setting, text, chance).committed
            num_rounds += 1
        texts.append(text[:30])
    assert num_rounds < 25  # the tree did save rounds
    assert texts[0] == texts[1]


# NaN and other numbers that are none


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        (Greedy(), GREEDY),
        (SampleAndMatch(), GREEDY),
        (SampleAndMatch(), PLAIN),
        (ChainSpeculative(), GREEDY),
        (ChainSpeculative(), Sampling(0.8, top_k=2, top_p=0.9)),
    ],
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("node", [0, 1])
def test_a_visited_row_that_is_not_a_number_raises(
    rule: Greedy | SampleAndMatch | ChainSpeculative,
    sampling: Sampling,
    bad: float,
    node: int,
) -> None:
    """Public case 17: NaN logits raise, they do not become a token."""
    certain = torch.tensor([[0.0, 0.0, 1.0, 0.0]])
    tree = tree_of([0], [2], ProposalKind.WITH_REPLACEMENT, certain)
    logits = certain.log().nan_to_num(neginf=-50).repeat(2, 1)
    rule.accept(tree, logits, sampling, seeded(0))
    logits[node, 3] = bad
    with pytest.raises(NumericalError, match=f"node {node} of the tree is {bad}"):
        rule.accept(tree, logits, sampling, seeded(0))


@pytest.mark.parametrize("rule", [Greedy(), SampleAndMatch(), ChainSpeculative()])
def test_processors_that_ban_every_token_raise(
    rule: Greedy | SampleAndMatch | ChainSpeculative,
) -> None:
    logits = torch.full((1, 4), -torch.inf)
    root = root_tree(0, ProposalKind.WITH_REPLACEMENT, CPU)
    with pytest.raises(NumericalError, match=r"is -inf.*sampling\.processors"):
        rule.accept(root, logits, GREEDY, seeded(0))


def test_a_row_that_is_not_visited_may_be_anything() -> None:
    logits = logits_for(1, 1, 1)
    logits[1] = math.nan
    acceptance = Greedy().accept(tree_of([0, 0], [4, 5]), logits, GREEDY, NoChance())
    assert acceptance.next_token == 1


def test_a_draft_that_is_not_a_number_raises() -> None:
    law = torch.full((1, 4), math.nan)
    tree = tree_of([0], [2], ProposalKind.WITH_REPLACEMENT, law)
    with pytest.raises(NumericalError, match="the draft's probabilities at node 0"):
        ChainSpeculative().accept(tree, torch.zeros(2, 4), PLAIN, seeded(0))


# Chain speculative sampling


class Unlucky(AbstractChance):
    """Rejects whenever it may; draws the first possible token."""

    def accepts(self, probability: Tensor) -> bool:
        return bool(probability >= 1)

    def draw(self, probs: Tensor) -> Tensor:
        return (probs > 0).int().argmax(dim=-1)

    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        return probs.topk(num_draws, dim=-1).indices


def test_a_rejection_without_a_residual_is_rounding_and_accepts() -> None:
    """Sequoia ends generation on the NaN residual of p = q."""
    law = PLAIN.probs(torch.zeros(1, 4))
    rounded = law.clone()
    rounded[0, 2] += 1e-6  # the draft's mass exceeds 1 by a rounding error
    tree = tree_of([0], [2], ProposalKind.WITH_REPLACEMENT, rounded)
    acceptance = ChainSpeculative().accept(tree, torch.zeros(2, 4), PLAIN, Unlucky())
    assert acceptance.node_ids == (1,)
    assert acceptance.next_kind == "bonus"


def test_one_hot_laws_that_agree_accept_and_that_differ_recover() -> None:
    one_hot = torch.eye(4)[[2]]
    tree = tree_of([0], [2], ProposalKind.WITH_REPLACEMENT, one_hot)
    for best, node_ids, next_token in [(2, (1,), 1), (3, (), 3)]:
        logits = logits_for(best, 1, vocab_size=4)
        acceptance = ChainSpeculative().accept(tree, logits, GREEDY, Unlucky())
        assert acceptance.node_ids == node_ids
        assert acceptance.next_token == next_token


def test_an_impossible_token_is_never_accepted_or_recovered() -> None:
    """Public case 14: the fourth token has target probability 0."""
    tree = tree_of(
        [0], [3], ProposalKind.WITH_REPLACEMENT, torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    )
    logits = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).log().repeat(2, 1)
    chance = seeded(0)
    for _ in range(300):
        acceptance = ChainSpeculative().accept(tree, logits, PLAIN, chance)
        assert acceptance.node_ids == ()
        assert acceptance.next_token in (0, 1)


def test_rules_stay_on_the_device_of_their_data() -> None:
    law = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    tree = tree_of([0], [3], ProposalKind.WITH_REPLACEMENT, law)
    chance, logits = seeded(0), torch.zeros(2, 4)
    with torch.device("meta"):  # what forgets its device lands there and fails
        for rule in (Greedy(), SampleAndMatch(), ChainSpeculative()):
            rule.accept(tree, logits, Sampling(), chance)
        ChainSpeculative().accept(tree, logits, PLAIN, chance)


def test_accept_events_are_independent_and_the_law_is_right_with_a_generator() -> None:
    """Public case 23: reseeding inside the accept loop made every uniform equal.

    10,000 rounds on the vectors of public case 14; by chance alone the correlation is
    within .05 but for 1 seed in a million. The seed is fixed.
    """
    setting = Setting(
        target=constant_model(0.5, 0.3, 0.2, 0.0),
        draft=constant_model(0.1, 0.2, 0.3, 0.4),
        proposal=ProposalKind.WITH_REPLACEMENT,
        widths=(1,),
    )
    trees = [
        tree_of([0], [token], setting.proposal, setting.draft(()).exp()[None])
        for token in range(4)
    ]
    chance = seeded(0)
    logits = setting.target(()).repeat(2, 1)
    drafted = chance.draw(setting.draft(()).exp().expand(10_000, -1)).tolist()
    first_tokens = torch.zeros(4)
    events = []
    for token in drafted:
        acceptance = ChainSpeculative().accept(trees[token], logits, PLAIN, chance)
        accepted = bool(acceptance.node_ids)
        first_tokens[token if accepted else acceptance.next_token] += 1
        events.append(float(accepted))
    accepts = torch.tensor(events)
    assert abs(accepts.mean() - 0.5) < 0.02
    pairs = torch.stack((accepts[:-1], accepts[1:]))
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.05
    assert first_tokens[3] == 0
    assert chisquare(first_tokens[:3], [5_000, 3_000, 2_000]).pvalue > 1e-4


# Rounding: what has no probability, and must still not go wrong


class Contrary(AbstractChance):
    """Rejects what is certain, so often; then accepts what is certain."""

    def __init__(self, num_rejections: int) -> None:
        self._left = num_rejections

    def accepts(self, probability: Tensor | float) -> bool:
        self._left -= 1
        return self._left < 0 and float(probability) >= 1

    def draw(self, probs: Tensor) -> Tensor:
        return probs.argmax(dim=-1)

    def draw_without_replacement(self, probs: Tensor, num_draws: int) -> Tensor:
        return probs.topk(num_draws, dim=-1).indices


def test_a_residual_without_mass_falls_back_to_the_likeliest_sibling() -> None:
    laws = torch.tensor([[0.1, 0.2, 0.7, 0.0]])
    siblings = Siblings(0, [1, 2], laws[0], laws[0], ProposalKind.WITH_REPLACEMENT)
    assert recover(torch.zeros(4), siblings, Contrary(0)) == 2


def test_the_sibling_whose_rejection_leaves_nothing_is_the_one_accepted() -> None:
    """After token 2 is rejected both laws are (.5, .5, 0), and token 1 is certain."""
    law = torch.tensor([[0.25, 0.25, 0.5]])
    tree = tree_of([0, 0], [2, 1], ProposalKind.WITHOUT_REPLACEMENT, law)
    logits = torch.tensor([0.5, 0.5, 0.0]).log().repeat(3, 1)
    rule = RejectionWithoutReplacement()
    acceptance = rule.accept(tree, logits, PLAIN, Contrary(2))
    assert acceptance.node_ids == (2,)


@pytest.mark.parametrize("rule", [BlockVerification(), TraversalVerification()])
def test_a_chain_of_equal_laws_loses_no_more_than_what_was_rejected(
    rule: AbstractAcceptanceRule,
) -> None:
    law = torch.full((1, 4), 0.25)
    tree = tree_of([0], [2], ProposalKind.WITH_REPLACEMENT, law)
    layer = Layer(
        parents=torch.tensor([1]),
        tokens=torch.tensor([3]),
        draft_logprobs=torch.zeros(1),
        sources=torch.zeros(1, dtype=torch.int64),
        draft_probs=law,
    )
    tree = tree.extend(layer, frontier=torch.tensor([1]))
    acceptance = rule.accept(tree, torch.zeros(3, 4), PLAIN, Contrary(1))
    assert acceptance.node_ids == (1,)
    assert acceptance.next_kind == "recovered"


# Typical acceptance


def test_a_token_no_likelier_than_the_threshold_is_not_typical() -> None:
    """Below epsilon, how likely it must be falls with the entropy of the law."""
    logits = torch.zeros(2, 16)  # every token has 1/16, and the entropy is log 16
    tree = tree_of([0], [5])
    for epsilon, delta, node_ids in [
        (1 / 16, 9.0, ()),
        (1 / 17, 9.0, (1,)),
        (0.09, 0.9, (1,)),
        (0.09, 1.1, ()),
    ]:
        rule = TypicalAcceptance(epsilon, delta)
        acceptance = rule.accept(tree, logits, PLAIN, Unlucky())
        assert acceptance.node_ids == node_ids
        assert acceptance.next_kind == ("bonus" if node_ids else "recovered")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_equally_long_typical_paths_the_likeliest_wins(
    order: tuple[int, int],
) -> None:
    """.6 x .5 against .4 x .6: neither the first path nor the last token decides."""
    laws = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.4, 0.0, 0.0, 0.6]])[list(order)]
    root, last = torch.tensor([[0.0, 0.6, 0.4, 0.0]]), torch.eye(4)[[2, 2]]
    logits = torch.cat((root, laws, last)).log()
    tokens = [(1, 2)[place] for place in order]
    tree = tree_of([0, 0, 1, 2], [*tokens, 3, 3])
    acceptance = TypicalAcceptance().accept(tree, logits, PLAIN, Unlucky())
    likeliest = 1 + order.index(0)
    assert acceptance.node_ids == (likeliest, likeliest + 2)
    assert acceptance.next_token == 2
    assert acceptance.next_kind == "bonus"


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("epsilon", 0, r"in \(0, 1\]"),
        ("epsilon", 1.5, r"in \(0, 1\]"),
        ("epsilon", True, r"in \(0, 1\]"),
        ("delta", 0.0, "> 0"),
        ("delta", math.nan, "> 0"),
    ],
)
def test_typical_bounds_that_are_none_are_refused(
    name: str, value: float, bounds: str
) -> None:
    told = rf"acceptance\.{name} must be {bounds}, got {value!r}"
    with pytest.raises(TreespecError, match=told):
        TypicalAcceptance(**{name: value})
