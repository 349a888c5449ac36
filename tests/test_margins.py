"""A margin is twice the least noise that explains a token: no more, and no less."""

import math

import pytest
import torch
from torch import Tensor

from treespec.chance import look_up
from treespec.margins import explains, margin
from treespec.outcome import FAR
from treespec.sampling import Sampling

VOCAB_SIZE = 6
SAMPLINGS = [
    Sampling(0.6),
    Sampling(1.4),
    Sampling(1.0, top_k=3),
    Sampling(0.8, top_p=0.7),
    Sampling(1.2, top_k=4, top_p=0.8),
    Sampling(1.0, top_k=1),
    Sampling(1.0, top_p=0.1),
]


def logits_and_mark(seed: int) -> tuple[Tensor, float]:
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(VOCAB_SIZE, generator=generator).double()
    return logits, float(torch.rand((), generator=generator).double())


def drawn(sampling: Sampling, logits: Tensor, mark: float) -> int:
    """The token that a draw with this uniform takes."""
    marks = torch.tensor([mark], dtype=torch.float64)
    return int(look_up(sampling.probs(logits), marks))


def test_a_greedy_margin_is_how_far_a_token_is_behind_the_best() -> None:
    logits = torch.tensor([1.0, 4.0, 3.5, -torch.inf])
    found = [margin(Sampling(), logits, token, 0.0) for token in range(4)]
    assert found == [3.0, 0.0, 0.5, FAR]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_the_token_that_is_drawn_has_no_margin_and_all_others_have_one(
    sampling: Sampling,
) -> None:
    for seed in range(20):
        logits, mark = logits_and_mark(seed)
        taken = drawn(sampling, logits, mark)
        for token in range(VOCAB_SIZE):
            assert (margin(sampling, logits, token, mark) == 0) == (token == taken)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_without_filters_a_margin_is_a_distance_in_log_odds(temperature: float) -> None:
    """Both ends of a stretch move by 2 d / T in log-odds when logits move by d."""
    law = torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64)
    logits, mark = temperature * law.log(), 0.25

    def odds(mass: float) -> float:
        return math.log(mass / (1 - mass))

    found = [
        margin(Sampling(temperature), logits, token, mark) / temperature
        for token in range(4)
    ]
    above = odds(0.25) - odds(0.1), odds(0.3) - odds(0.25), odds(0.7) - odds(0.25)
    assert found == pytest.approx([above[0], 0.0, *above[1:]], rel=0.01)


def test_a_margin_is_never_too_small() -> None:
    """Noise of half of it, all before the token up and all after down, is enough."""
    for seed in range(40):
        logits, mark = logits_and_mark(seed)
        for token in range(VOCAB_SIZE):
            noise = margin(Sampling(0.9), logits, token, mark) / 2
            up = torch.arange(VOCAB_SIZE) < token
            down = torch.arange(VOCAB_SIZE) > token
            changes = [
                noise * sign * (up.double() - down.double() + (sign * same) * on)
                for sign in (-1, 1)
                for same in (0, 1)
                for on in [(~up & ~down).double()]
            ]
            texts = {drawn(Sampling(0.9), logits + change, mark) for change in changes}
            assert token in texts


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@pytest.mark.parametrize("noise", [0.1, 0.8])
def test_whatever_noise_makes_of_a_draw_is_explained_by_it(
    sampling: Sampling, noise: float
) -> None:
    """No change of the logits by up to ``noise`` leads to an unexplained token."""
    generator = torch.Generator().manual_seed(0)
    num_changed = 0
    for seed in range(15):
        logits, mark = logits_and_mark(seed)
        for _ in range(20):
            signs = torch.rand(VOCAB_SIZE, generator=generator).double().round()
            noisy = logits + noise * (2 * signs - 1)
            token = drawn(sampling, noisy, mark)
            assert explains(sampling, logits, token, mark, noise * (1 + 1e-9))
            num_changed += token != drawn(sampling, logits, mark)
    assert num_changed > 0 or noise < 0.5


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_small_noise_does_not_explain_everything(sampling: Sampling) -> None:
    """A definition that is too wide would let faults pass as ties."""
    explained = 0
    for seed in range(50):
        logits, mark = logits_and_mark(seed)
        taken = drawn(sampling, logits, mark)
        others = set(range(VOCAB_SIZE)) - {taken}
        explained += sum(
            explains(sampling, logits, token, mark, 0.01) for token in others
        )
    assert explained <= 0.03 * 50 * (VOCAB_SIZE - 1)


def test_a_banned_token_is_never_explained() -> None:
    logits = torch.tensor([0.0, -torch.inf, 1.0])
    for sampling in (Sampling(1.0), Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.9)):
        assert margin(sampling, logits, 1, 0.5) == FAR
