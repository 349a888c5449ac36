"""What repeats say of the machine."""

import math
from dataclasses import replace

import pytest

from tests.outcomes import make_outcome
from treespec.noise import repeat_noise
from treespec.outcome import Repeat


def repeated(prompt_id, *seconds, agrees=True):
    repeats = tuple(Repeat(plain, fast, agrees) for plain, fast in seconds)
    return replace(make_outcome(prompt_id), repeats=repeats)


def test_the_spread_is_that_of_the_speedup_within_prompts_only():
    """A slow text is no noise, nor is a minute in which both sides were slower."""
    calm = [
        repeated("a", (2.0, 1.0), (4.0, 2.0)),
        repeated("b", (9.0, 1.0), (9.0, 1.0)),
    ]
    assert repeat_noise(calm)["speedup_spread"] == pytest.approx(0.0)
    noisy = [
        repeated("a", (2.0, 1.0), (2.2, 1.0)),
        repeated("b", (9.0, 1.0), (9.0, 1.0)),
    ]
    expected = math.sqrt(math.log(1.1) ** 2 / 2 / 2)
    assert repeat_noise(noisy)["speedup_spread"] == pytest.approx(expected)


def test_without_repeats_nothing_is_known_of_them():
    assert repeat_noise([make_outcome()]) == {
        "num_repeats": 1,
        "speedup_spread": None,
        "num_differing": 0,
    }


def test_prompts_of_one_token_take_no_part():
    short = repeated("a", (0.0, 0.0), (0.0, 0.0))
    assert repeat_noise([short])["speedup_spread"] is None
    assert repeat_noise([short])["num_repeats"] == 2


def test_texts_that_were_not_the_same_every_time_are_counted():
    other = repeated("a", (1.0, 1.0), (1.0, 1.0), agrees=False)
    same = [repeated(name, (1.0, 1.0), (1.0, 1.0)) for name in "bc"]
    assert repeat_noise([other, *same])["num_differing"] == 1
