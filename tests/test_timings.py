"""What is timed, by a clock that the models themselves turn."""

import math
from dataclasses import replace

import pytest

from tests.tiny import tiny_model
from treespec import timings
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import (
    AbstractDrafter,
    Cascade,
    DraftModel,
    EarlyExit,
    Marginals,
    Merge,
    PromptLookup,
)
from treespec.errors import TreespecError
from treespec.fitting import Size, medians
from treespec.forwards import draft_models
from treespec.models.huggingface import HuggingFaceModel
from treespec.policies import TopKTree
from treespec.timings import in_turns, measure_costs, time_costs
from treespec.verifiers import TreeAttention

READ_S = 1e-6
"""Seconds between two looks at the clock, so that nothing takes none."""


class Clock:
    now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += READ_S
        return self.now_s


class Slow(HuggingFaceModel):
    """Takes seconds per forward, per row and per slot that is seen; also the clock."""

    clock = Clock()

    def __init__(self, start_s: float, row_s: float, slot_s: float, positions: int):
        super().__init__(tiny_model("llama", 1, num_layers=2, max_positions=positions))
        self.of = start_s, row_s, slot_s
        self.sizes: list[tuple[int, int]] = []

    def forward(self, rows, cache, hidden_layers=()):
        start_s, row_s, slot_s = self.of
        num_rows, seen = rows.tokens.shape[0], rows.segments[0].num_slots
        self.sizes.append((num_rows, seen - num_rows))
        self.clock.now_s += start_s + row_s * num_rows + slot_s * seen
        return super().forward(rows, cache, hidden_layers)


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(Slow, "clock", Clock())
    monkeypatch.setattr("treespec.stopwatch.time", Slow.clock)
    return Slow.clock


def decoder_of(drafter: AbstractDrafter, positions: int = 2048) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        target=Slow(0.100, 0.001, 1e-5, positions),
        drafter=drafter,
        policy=TopKTree(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(2, 2, 4),
    )


def test_costs_are_those_of_rows_and_of_text() -> None:
    draft = Slow(0.010, 0.0005, 2e-6, 2048)
    costs = measure_costs(decoder_of(DraftModel(draft)))
    for num_rows in (1, 2, 5, 8, 40):
        for length in (64, 700, 1536):
            of_target = 0.100 + 0.001 * num_rows + 1e-5 * (length + num_rows)
            of_draft = 0.010 + 0.0005 * num_rows + 2e-6 * (length + num_rows)
            assert costs.target(num_rows, length) == pytest.approx(of_target, rel=2e-3)
            assert costs.draft(num_rows, length) == pytest.approx(of_draft, rel=2e-3)
    assert costs.target_curve.error < 1e-3
    assert 0 < costs.step_s < 1000 * READ_S  # a few looks at the clock


def test_the_text_is_not_read_and_longer_ones_are_left_out_where_they_do_not_fit() -> (
    None
):
    """1536 tokens of prefill would take longer than everything else together."""
    decoder = decoder_of(PromptLookup(), positions=600)
    timed = time_costs(decoder).target
    assert {size.length for size in timed} == {64, 512}
    forwards = set(decoder.target.sizes)
    assert {(size.num_rows, size.length - 1) for size in timed} <= forwards
    assert max(num_rows for num_rows, _ in forwards) <= 256


@pytest.mark.parametrize("positions", [2, 3, 40])
def test_a_model_of_few_positions_is_timed_behind_what_it_reads(positions) -> None:
    small = replace(decoder_of(PromptLookup()), target=Slow(0.1, 0.01, 0, positions))
    timed = timings.time_forwards([small.target], None)
    assert {size.length for size in timed} == {positions - 1}


def test_what_is_slower_than_any_tree_gains_is_timed_no_further() -> None:
    """A row costs as much as a forward: six rows are as slow as six steps."""
    decoder = decoder_of(PromptLookup())
    decoder = replace(decoder, target=Slow(0.0, 0.1, 0.0, 400))
    timed = time_costs(decoder).target
    assert max(size.num_rows for size in timed) == 8


def test_a_slow_model_is_timed_less_often_but_never_once() -> None:
    fast = timings.time_forwards([Slow(0.001, 0, 0, 400)], None)
    slow = timings.time_forwards([Slow(5.0, 0.1, 0, 400)], None)
    assert {len(seconds) for seconds in fast.values()} == {timings.MOST_TURNS}
    assert {len(seconds) for seconds in slow.values()} == {timings.LEAST_TURNS}
    assert len(slow) < len(fast)


def test_sizes_take_turns_so_that_a_noisy_moment_hits_none_alone() -> None:
    seen: list[int] = []

    def time(size: Size) -> float:
        seen.append(size.num_rows)
        return 50.0 if 5 <= len(seen) < 8 else 0.001 * size.num_rows

    sizes = [Size(num_rows, 64) for num_rows in (1, 2, 4)]
    found = in_turns([sizes], time, math.inf)
    assert seen[:9] == [1, 2, 4, 1, 2, 4, 1, 2, 4]
    assert {len(seconds) for seconds in found.values()} == {timings.MOST_TURNS}
    assert all(seconds.count(50.0) == 1 for seconds in found.values())
    assert medians(found) == {size: 0.001 * size.num_rows for size in sizes}


def test_a_noisy_moment_does_not_end_the_sizes() -> None:
    """The first timing of one row was once slow by chance, and was left alone."""
    looks = iter([9.0, 0.01, 9.0, 0.02])
    sizes = [Size(num_rows, 64) for num_rows in (1, 2, 4, 8)]
    found = in_turns([sizes], lambda size: next(looks, 0.03), 1.0)
    assert list(found) == sizes


def test_a_drafter_without_a_model_is_timed_by_its_expansions() -> None:
    decoder = decoder_of(PromptLookup())
    assert set(time_costs(decoder).draft) == {Size(n, 64) for n in timings.WIDTHS}


def test_the_models_of_a_drafter_are_found_wherever_they_are() -> None:
    first, second = Slow(0, 0, 0, 64), Slow(0, 0, 0, 64)
    one = DraftModel(first)
    assert draft_models(one) == [first]
    assert draft_models(Marginals(one)) == [first]
    assert draft_models(Cascade([PromptLookup(), one], [0.5])) == [first]
    assert draft_models(Merge([one, DraftModel(second)])) == [first, second]
    assert draft_models(PromptLookup()) == []
    (lower,) = draft_models(EarlyExit(first, 1))
    assert lower.num_layers == 1


@pytest.mark.parametrize("poison", [0.0, math.nan, math.inf])
def test_a_poisoned_clock_is_told_and_never_believed(monkeypatch, poison) -> None:
    for name in ("ROWS", "COARSE_ROWS"):
        monkeypatch.setattr(timings, name, (1, 2, 32))
    monkeypatch.setattr(Clock, "perf_counter", lambda self: poison)
    with pytest.raises(TreespecError, match=r"timings|clock") as told:
        measure_costs(decoder_of(DraftModel(Slow(1, 1, 1, 400))))
    assert "\n" not in str(told.value)


def test_a_clock_that_jumps_now_and_then_changes_no_cost(monkeypatch) -> None:
    """A laptop that slept, a clock that was set back."""
    for name in ("ROWS", "COARSE_ROWS"):
        monkeypatch.setattr(timings, name, (1, 2, 4, 8, 16, 32))
    calm = measure_costs(decoder_of(DraftModel(Slow(0.010, 0.0005, 0, 400))))
    looks = 0

    def jumping(self: Clock) -> float:
        nonlocal looks
        looks += 1
        self.now_s += READ_S
        if looks % 37 == 0:
            return self.now_s + 1e4
        return self.now_s - 1e5 if looks % 41 == 0 else self.now_s

    monkeypatch.setattr(Clock, "perf_counter", jumping)
    jumped = measure_costs(decoder_of(DraftModel(Slow(0.010, 0.0005, 0, 400))))
    for num_rows in (1, 4, 16):
        assert jumped.draft(num_rows) == pytest.approx(calm.draft(num_rows), rel=0.01)
        assert jumped.target(num_rows) == pytest.approx(calm.target(num_rows), rel=0.01)
