import dataclasses

import pytest

from treespec import measure as module
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import PromptLookup
from treespec.drafters.suffix_memory import SuffixMemory
from treespec.errors import TreespecError
from treespec.measure import Measurement, measure
from treespec.models.table import TableModel
from treespec.policies import Chain
from treespec.sampling import Sampling
from treespec.tasks import Task, prompt_seed
from treespec.verifiers import TreeAttention

VOCAB = 5


def counting(text):
    """0 1 2 3 4 0 1 2 ...: prompt lookup guesses it all after one round."""
    return [4.0 if token == (text[-1] + 1) % VOCAB else 0.0 for token in range(VOCAB)]


def never_repeating(text):
    wanted = (text[-1] * 3 + len(text) ** 2 + len(text) // 7) % VOCAB
    return [4.0 if token == wanted else 0.0 for token in range(VOCAB)]


def decoder_of(model, max_depth=4, max_concurrent=1):
    return SpeculativeDecoder(
        target=model,
        drafter=PromptLookup(),
        policy=Chain(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(max_depth=max_depth, max_nodes=max_depth),
        max_concurrent=max_concurrent,
    )


def tasks_of(count, length=20):
    return [
        Task(f"p{i}", "x", tuple(j % VOCAB for j in range(i, i + length)))
        for i in range(count)
    ]


def measured(decoder, tasks, **settings):
    outcomes = []
    measurement = Measurement(
        Sampling(), **{"max_new_tokens": 8, "seed": 0, **settings}
    )
    summary = measure(decoder, tasks, measurement, outcomes.append, lambda what: None)
    return summary, outcomes


class SlowModel(TableModel):
    """Takes 200 ms to read a prompt, 10 ms for a step, 500 ms more the first time.

    It is also the clock, so that the machine's own pace changes nothing.
    """

    now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def forward(self, rows, cache, hidden_layers=()):
        seconds = 0.2 if rows.tokens.shape[0] > 8 else 0.01
        self.now_s += seconds + (0 if self.forwards else 0.5)
        return super().forward(rows, cache, hidden_layers)


def test_the_clock_sees_neither_warm_up_nor_prefill_in_decoding(monkeypatch):
    """Public case 35: first calls used to be timed, and prefill counted as decoding."""
    model = SlowModel(counting, VOCAB)
    monkeypatch.setattr("treespec.stopwatch.time", model)
    summary, (outcome,) = measured(decoder_of(model), tasks_of(1), max_new_tokens=21)
    baseline, speculative = outcome.baseline, outcome.speculative
    for result in (baseline, speculative):
        assert result.prefill_s == pytest.approx(0.2)
        steps_s = 0.010 * len(result.steps)
        assert result.decode_s == pytest.approx(steps_s)
        parts_s = sum(
            s.draft_s + s.plan_s + s.verify_s + s.accept_s + s.commit_s
            for s in result.steps
        )
        assert parts_s == pytest.approx(sum(s.step_s for s in result.steps))
        assert sum(s.step_s for s in result.steps) == pytest.approx(result.decode_s)
    assert baseline.prompt_tokens == speculative.prompt_tokens
    assert len(baseline.tokens) == len(speculative.tokens) == 21
    assert len(baseline.steps) == 20
    assert len(speculative.steps) < 10
    assert summary["tokens_per_second"] == pytest.approx(20 / speculative.decode_s)
    assert summary["ttft_ms"] == pytest.approx(200)
    assert summary["peak_memory_bytes"] is None  # no such number on a CPU


def test_the_warm_up_meets_every_number_of_rows():
    """Public case 35: adaptive trees first met their size under the clock."""
    model = TableModel(never_repeating, VOCAB)
    measured(decoder_of(model, max_depth=7), tasks_of(1), max_new_tokens=1)
    assert set(range(2, 9)) <= {rows.tokens.shape[0] for rows in model.forwards}


def test_the_warm_up_ends_whatever_the_limits_are():
    """A limit of a million prompts or nodes once made the warm-up decode as many."""
    model = TableModel(never_repeating, VOCAB)
    decoder = dataclasses.replace(
        decoder_of(model, max_concurrent=10**6), controller=Constant(1000, 1000, 10**6)
    )
    measured(decoder, tasks_of(2), max_new_tokens=1)
    assert len(model.forwards) < 100


def test_without_warm_up_nothing_runs_before_the_clock():
    model = TableModel(counting, VOCAB)
    measured(decoder_of(model), tasks_of(1), max_new_tokens=1, warmup=False)
    assert len(model.forwards) == 2


def test_which_side_goes_first_is_rotated(monkeypatch):
    order, decode = [], module._decode

    def spy(side, device, batch, measurement):
        order.append(side.controller.largest.speculates)
        return decode(side, device, batch, measurement)

    monkeypatch.setattr(module, "_decode", spy)
    measured(decoder_of(TableModel(counting, VOCAB)), tasks_of(3))
    assert order == [False, True, True, False, False, True]


def test_every_prompt_of_a_batch_has_its_own_latency():
    summary, outcomes = measured(
        decoder_of(TableModel(counting, VOCAB), max_concurrent=2), tasks_of(5)
    )
    assert [outcome.id for outcome in outcomes] == [f"p{i}" for i in range(5)]
    assert all(outcome.speculative.decode_s > 0 for outcome in outcomes)
    assert all(outcome.lossless == "identical" for outcome in outcomes)
    assert summary["throughput_rps"] == pytest.approx(5 / summary["wall_s"])


def test_a_prompts_seed_comes_from_the_runs_seed_and_its_own_id():
    assert prompt_seed(0, "a") == prompt_seed(0, "a")
    assert len({prompt_seed(0, "a"), prompt_seed(1, "a"), prompt_seed(0, "b")}) == 3
    assert 0 <= prompt_seed(0, "a") < 2**63


class EverSlower(TableModel):
    """The n-th text takes n times 10 ms a step; is also the clock."""

    now_s = 0.0
    num_texts = 0

    def perf_counter(self):
        return self.now_s

    def forward(self, rows, cache, hidden_layers=()):
        self.num_texts += rows.tokens.shape[0] > 8
        self.now_s += 0.01 * self.num_texts
        return super().forward(rows, cache, hidden_layers)


def test_repeats_are_taken_in_turns_and_the_median_counts(monkeypatch):
    """Plain, fast; fast, plain; plain, fast: plain are the texts 1, 4 and 5."""
    model = EverSlower(never_repeating, VOCAB)
    monkeypatch.setattr("treespec.stopwatch.time", model)
    summary, (outcome,) = measured(
        decoder_of(model), tasks_of(1), max_new_tokens=5, warmup=False, repeats=3
    )
    repeats = outcome.repeats
    assert [round(r.baseline_s / 4, 3) for r in repeats] == [0.01, 0.04, 0.05]
    assert outcome.baseline.decode_s == repeats[1].baseline_s
    middle = sorted(r.speculative_s for r in repeats)[1]
    assert outcome.speculative.decode_s == middle
    assert all(repeat.agrees for repeat in repeats)
    assert summary["repeats"]["num_repeats"] == 3
    assert summary["repeats"]["speedup_spread"] > 0.1
    assert summary["num_prompts"] == 1


def test_one_measurement_leaves_no_repeats():
    _, (outcome,) = measured(decoder_of(TableModel(counting, VOCAB)), tasks_of(1))
    assert outcome.repeats == ()


def test_a_text_that_changes_between_measurements_is_told():
    """It would be compared with times of another text."""

    def fickle(text):
        fickle.num_asked += 1
        return [float(token == fickle.num_asked // 40 % 3) for token in range(VOCAB)]

    fickle.num_asked = 0
    _, (outcome,) = measured(
        decoder_of(TableModel(fickle, VOCAB), max_depth=0),
        tasks_of(1),
        warmup=False,
        repeats=3,
    )
    assert not all(repeat.agrees for repeat in outcome.repeats)


def test_repeats_with_a_drafter_that_remembers_are_refused():
    """The second measurement would find the whole text in its memory."""
    decoder = dataclasses.replace(
        decoder_of(TableModel(counting, VOCAB)),
        drafter=PromptLookup(memory=SuffixMemory()),
    )
    with pytest.raises(TreespecError, match="repeats=2 would measure what PromptLook"):
        measured(decoder, tasks_of(1), repeats=2)
    measured(decoder, tasks_of(1), repeats=1)
