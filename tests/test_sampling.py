import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.strategies import VOCAB_SIZE, repeatable, token_trees
from treespec.chance import GeneratorChance, draw
from treespec.errors import TreespecError
from treespec.sampling import Sampling
from treespec.tree import TokenTree


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference_probs(sampling: Sampling, logits: Tensor) -> Tensor:
    """What transformers samples from: ``generate`` casts logits to float32 first."""
    warpers = LogitsProcessorList()
    if sampling.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k != 0:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    histories = torch.zeros(logits.shape[0], 1, dtype=torch.int64)
    return warpers(histories, logits.float()).softmax(dim=-1)


# Laws


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    list(itertools.product([0.3, 1.0, 1.7], [0, 1, 5, 99], [0.1, 0.5, 0.95, 1.0])),
)
def test_probs_equal_those_of_transformers(
    temperature: float, top_k: int, top_p: float, dtype: torch.dtype
) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    logits = random_logits(8, 40).to(dtype)
    probs = sampling.probs(logits)
    assert probs.dtype == torch.float32
    assert probs.equal(reference_probs(sampling, logits))


@pytest.mark.parametrize("top_k", [0, 1, 2, 3])
@pytest.mark.parametrize("top_p", [0.2, 0.25, 0.5, 0.75, 1.0])
def test_ties_are_cut_as_transformers_cuts_them(top_k: int, top_p: float) -> None:
    logits = torch.tensor(
        [[1.0, 1, 1, 1], [2, 1, 1, 0], [0, 2, 2, 1], [-torch.inf, 1, 1, -torch.inf]]
    )
    sampling = Sampling(1.0, top_k, top_p)
    assert sampling.probs(logits).equal(reference_probs(sampling, logits))


def test_top_k_keeps_all_tokens_tied_with_the_last() -> None:
    probs = Sampling(1.0, top_k=2).probs(torch.tensor([2.0, 1, 1, 0]))
    assert (probs > 0).tolist() == [True, True, True, False]


def test_top_p_keeps_the_best_token_however_small_it_is() -> None:
    probs = Sampling(1.0, top_p=1e-9).probs(torch.tensor([0.0, 1.0, 0.5]))
    assert probs.tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_the_greedy_law_is_one_at_the_argmax(temperature: float) -> None:
    sampling = Sampling(temperature)
    logits = random_logits(6, 9)
    logits[0] = 1.0  # ties everywhere
    logits[1, [3, 7]] = 20.0
    for given_logits in (logits, logits.bfloat16()):
        probs = sampling.probs(given_logits)
        assert probs.dtype == torch.float32
        assert probs.sum(dim=-1).tolist() == [1.0] * 6
        assert probs.argmax(dim=-1).equal(given_logits.argmax(dim=-1))
    assert sampling.greedy
    assert not Sampling(2e-5).greedy


def test_probs_take_any_leading_shape_and_keep_float64() -> None:
    sampling = Sampling(0.8, top_k=4, top_p=0.9)
    logits = random_logits(2, 3, 7).double()
    probs = sampling.probs(logits)
    assert probs.dtype == torch.float64
    assert probs[1, 2].equal(sampling.probs(logits[1, 2]))
    assert Sampling().probs(logits).dtype == torch.float64


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(1.0),
        Sampling(0.5, top_k=2, top_p=0.5),
        Sampling(1.0, repetition_penalty=1.3),
    ],
)
def test_logits_are_not_written_to(sampling: Sampling) -> None:
    logits = random_logits(1, 9)
    before = logits.clone()
    sampling.probs(logits)
    root = torch.tensor([4]), torch.tensor([-1])
    sampling.apply_history(logits, *root, committed=[2, 4])
    assert logits.equal(before)


# Processors that read the history


class InPlaceBan:
    """Bans the last token, and writes into what it is given."""

    def __call__(self, histories: Tensor, logits: Tensor) -> Tensor:
        return logits.scatter_(1, histories[:, -1:], -torch.inf)


@repeatable
@given(
    tree=token_trees(max_nodes=12),
    before_root=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=6),
)
def test_every_node_is_processed_along_its_own_path(
    tree: TokenTree, before_root: list[int]
) -> None:
    """UMbreLLa penalises all nodes by the committed prefix: another law in the tree."""
    processors = (NoRepeatNGramLogitsProcessor(2), InPlaceBan())
    sampling = Sampling(1.0, repetition_penalty=1.3, processors=processors)
    host = tree.host()
    committed = [*before_root, host.tokens[0]]
    logits = random_logits(tree.size, VOCAB_SIZE, seed=tree.size)
    processed = sampling.apply_history(logits, tree.tokens, tree.parents, committed)

    reference = LogitsProcessorList(
        [RepetitionPenaltyLogitsProcessor(1.3), *processors]
    )
    for node in range(tree.size):
        text = committed + [host.tokens[above] for above in host.path(node)]
        alone = logits[node : node + 1].clone()
        expected = reference(torch.tensor([text]), alone)
        assert processed[node].equal(expected[0])


def test_nodes_of_one_depth_are_processed_together() -> None:
    shapes: list[tuple[int, ...]] = []

    def spy(histories: Tensor, logits: Tensor) -> Tensor:
        assert histories.dtype == torch.int64
        shapes.append(tuple(histories.shape))
        return logits

    tokens = torch.tensor([4, 1, 2, 1, 3, 0])
    parents = torch.tensor([-1, 0, 0, 1, 1, 2])
    sampling = Sampling(processors=(spy,))
    sampling.apply_history(random_logits(6, 5), tokens, parents, committed=[2, 4])
    assert shapes == [(1, 2), (2, 3), (3, 4)]


def test_half_precision_logits_are_processed_in_float32() -> None:
    sampling = Sampling(repetition_penalty=1.1)
    logits = random_logits(1, 5).bfloat16()
    root = torch.tensor([2]), torch.tensor([-1])
    processed = sampling.apply_history(logits, *root, committed=[2])
    assert processed.dtype == torch.float32
    reference = RepetitionPenaltyLogitsProcessor(1.1)
    assert processed.equal(reference(torch.tensor([[2]]), logits.float()))


def test_logits_pass_untouched_if_nothing_reads_the_history() -> None:
    sampling = Sampling(0.7, top_k=3, top_p=0.9)
    logits = random_logits(1, 5)
    root = torch.tensor([2]), torch.tensor([-1])
    assert not sampling.reads_history
    assert sampling.apply_history(logits, *root, committed=[2]) is logits
    assert Sampling(repetition_penalty=0.9).reads_history
    assert Sampling(processors=(InPlaceBan(),)).reads_history


def test_sampling_stays_on_the_device_of_its_data() -> None:
    sampling = Sampling(0.7, 3, 0.9, 1.2, (InPlaceBan(),))
    logits, tokens, parents = random_logits(2, 5), torch.arange(2), torch.arange(-1, 1)
    chance = GeneratorChance(torch.Generator())
    half = torch.tensor(0.5)
    with torch.device("meta"):  # what forgets its device lands there and fails
        for chosen in (sampling, Sampling()):
            processed = sampling.apply_history(logits, tokens, parents, committed=[0])
            chance.draw(chosen.probs(processed)).tolist()
        chance.accepts(half)


# Bad values


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("processors", None),
        ("processors", ["no_repeat"]),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_key_and_the_way_out(
    key: str, value: Any
) -> None:
    with pytest.raises(TreespecError) as caught:
        Sampling(**{key: value})
    message = str(caught.value)
    assert message.startswith(f"sampling.{key} must be ")
    assert f"got {value!r}; use " in message
    assert "\n" not in message


def test_a_list_of_processors_becomes_a_tuple() -> None:
    ban = InPlaceBan()
    assert Sampling(processors=[ban]).processors == (ban,)
    assert Sampling(temperature=0, top_p=1) == Sampling()


# Draws


def test_draws_follow_the_law_and_never_take_an_impossible_token() -> None:
    """False alarm in 1 of 10,000 seeds; the seed is fixed."""
    law = torch.tensor([0.5, 0.3, 0.0, 0.199, 0.001, 0.0])
    tokens = draw(law.expand(50_000, -1), torch.Generator().manual_seed(5))
    counts = torch.bincount(tokens, minlength=6)
    assert counts[[2, 5]].tolist() == [0, 0]
    possible = law > 0
    expected = law[possible].double() * 50_000
    expected *= counts.sum() / expected.sum()
    assert chisquare(counts[possible], expected).pvalue > 1e-4


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_extreme_uniforms_draw_a_possible_token(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An infinite clock everywhere lets token 0 win; a zero one makes NaN."""

    def constant(shape: tuple[int, ...], **kwargs: Any) -> Tensor:
        return torch.full(shape, uniform, dtype=kwargs["dtype"])

    monkeypatch.setattr(torch, "rand", constant)
    one_hot = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert draw(one_hot, torch.Generator()).tolist() == [2, 1]


def test_draws_take_any_leading_shape() -> None:
    law = torch.eye(4)[torch.tensor([[1, 2], [3, 0]])]
    assert draw(law, torch.Generator()).tolist() == [[1, 2], [3, 0]]
    assert draw(law[0, 0], torch.Generator()).item() == 1


def test_rows_are_drawn_independently() -> None:
    law = torch.full((20_000, 2), 0.5)
    tokens = draw(law, torch.Generator().manual_seed(2)).double()
    pairs = torch.stack((tokens[:-1], tokens[1:]))
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.03


def test_a_seed_fixes_every_draw_and_seed_zero_is_a_seed() -> None:
    """Public case 23: ``if seed:`` took seed 0 for no seed."""
    law = torch.full((40, 8), 1 / 8)
    texts = {}
    for seed in (0, 1, 2):
        first, again = (
            draw(law, torch.Generator().manual_seed(seed)).tolist() for _ in range(2)
        )
        assert first == again
        texts[seed] = tuple(first)
    assert len(set(texts.values())) == 3


def test_acceptance_is_certain_at_one_and_impossible_at_zero() -> None:
    chance = GeneratorChance(torch.Generator().manual_seed(0))
    for _ in range(200):
        assert chance.accepts(torch.tensor(1.0))
        assert chance.accepts(torch.tensor(3.0))
        assert not chance.accepts(torch.tensor(0.0))
        assert not chance.accepts(torch.tensor(math.nan))


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_acceptance_holds_its_ends_at_extreme_uniforms(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequoia: r = 0 in ``p >= r * q`` let a token of target probability 0 pass."""

    def constant(shape: tuple[int, ...], **kwargs: Any) -> Tensor:
        return torch.full(shape, uniform, dtype=kwargs["dtype"])

    monkeypatch.setattr(torch, "rand", constant)
    chance = GeneratorChance(torch.Generator())
    assert not chance.accepts(torch.tensor(0.0))
    assert chance.accepts(torch.tensor(1.0))


def test_acceptance_is_as_frequent_as_its_probability() -> None:
    chance = GeneratorChance(torch.Generator().manual_seed(0))
    accepted = sum(chance.accepts(torch.tensor(0.3)) for _ in range(5_000))
    assert abs(accepted / 5_000 - 0.3) < 0.03  # 4.6 standard deviations


def test_a_processor_that_returns_another_shape_is_named() -> None:
    sampling = Sampling(processors=(lambda histories, logits: logits[0],))
    with pytest.raises(TreespecError, match=r"sampling\.processors"):
        sampling.apply_history(
            torch.zeros(1, 4), torch.tensor([1]), torch.tensor([-1]), [1]
        )
