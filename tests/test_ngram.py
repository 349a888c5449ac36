import random

import pytest

from treespec.errors import TreespecError
from treespec.ngram import NgramModel, ngram_bits


def test_the_probabilities_of_all_symbols_sum_to_one_at_every_place() -> None:
    model = NgramModel(num_symbols=4, order=2)
    for symbol in [0, 1, 0, 1, 1, 3, 0, 1]:
        assert sum(model.prob(other) for other in range(4)) == pytest.approx(1)
        model.append(symbol)


def test_a_probability_is_that_of_witten_and_bell() -> None:
    model = NgramModel(num_symbols=4, order=1)
    for symbol in [0, 1, 0]:
        model.append(symbol)
    # Empty context: 3 symbols of 2 kinds, 1 once, and 2 shares for 1/4 each.
    shorter = (1 + 2 / 4) / 5
    # After 0: once, 1; one share for the shorter context.
    assert model.prob(1) == pytest.approx((1 + shorter) / 2)


def test_a_text_that_repeats_itself_costs_less_and_noise_costs_all() -> None:
    generator = random.Random(0)
    noise = [generator.randrange(256) for _ in range(3000)]
    assert ngram_bits(noise, 256) > 7.9
    assert ngram_bits(noise[:300] * 10, 256) < 1.5


def test_what_stands_before_the_first_place_is_learned_and_not_counted() -> None:
    text = list(b"the cat sat on the mat. ")
    assert ngram_bits(text + text, 256, first=len(text)) < ngram_bits(text, 256) / 3


def test_a_text_without_a_symbol_to_count_is_refused() -> None:
    with pytest.raises(TreespecError, match="first must be a place in the text"):
        ngram_bits([1, 2], 256, first=2)
