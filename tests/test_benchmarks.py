"""What benchmarks make of their timings, without a model."""

import importlib
from pathlib import Path

import pytest

from treespec import decoder, recording
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import PromptLookup
from treespec.models.table import TableModel
from treespec.policies import Chain
from treespec.verifiers import TreeAttention

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """Benchmarks are scripts in a folder: a function that imports one by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def turn(module):
    def make(method, total_s, prefill_s=1.0, run="first", prompt="a", **changes):
        fields = {
            "setting": "toy",
            "category": "qa",
            "num_prompt_tokens": 5,
            "tokens": tuple(range(11)),
            "forward_s": total_s,
            "num_target_forwards": 11,
            "num_draft_forwards": 0,
            "foreign": 0.0,
        }
        return module("turns").Turn(
            run=run,
            method=method,
            prompt=prompt,
            total_s=total_s,
            prefill_s=prefill_s,
            **(fields | changes),
        )

    return make


def test_a_slow_reading_of_the_prompt_is_charged_to_the_peer_that_chose_it(
    module, turn
):
    turns = [
        turn("hf_generate", 11.0),
        turn("flashspec_composite", 11.0, prefill_s=6.0),
        turn("autoregressive", 16.0, prefill_s=6.0),
    ]
    speedups = module("turns").Results(turns).speedups
    assert speedups["flashspec_composite"]["qa"]["a"] == pytest.approx(1.0)
    assert speedups["autoregressive"]["qa"]["a"] == pytest.approx(1.0)


def test_a_shorter_text_is_no_faster_one(module, turn):
    turns = [turn("hf_generate", 11.0), turn("planner", 6.0, tokens=tuple(range(6)))]
    speedups = module("turns").Results(turns).speedups
    assert speedups["planner"]["qa"]["a"] == pytest.approx(1.0)


def test_pieces_from_several_processes_are_paired_each_with_its_own_base(
    module, turn, tmp_path
):
    slow = {"run": "second", "prompt": "b"}
    turns = module("turns")
    turns.write([turn("hf_generate", 11.0), turn("planner", 6.0)], tmp_path / "1")
    turns.write(
        [turn("hf_generate", 101.0, **slow), turn("planner", 51.0, **slow)],
        tmp_path / "2",
    )
    found = turns.read([str(tmp_path / "1"), str(tmp_path / "2")])
    ratio = turns.Results(found).ratio("planner", "hf_generate", ["qa"])
    assert ratio.mean == pytest.approx(2.0)
    assert turns.Results(found).speedups["planner"]["qa"].keys() == {"a", "b"}


def test_turns_come_back_from_their_file_as_they_were(module, turn, tmp_path):
    turns = module("turns")
    differences = {"autoregressive": None, "hf_generate": turns.Difference(3, 0.125)}
    one = turn("planner", 2.0, reasons={"lookup": 3}, differences=differences)
    turns.write([one], tmp_path / "turns.jsonl")
    assert turns.read([str(tmp_path / "turns.jsonl")]) == [one]


def test_the_best_peer_and_the_best_fixed_strategy_are_told_apart(module, turn):
    seconds = {
        "hf_generate": 11.0,
        "hf_prompt_lookup_8": 5.0,
        "lookup": 4.0,
        "chain_3": 6.0,
        "planner": 3.0,
    }
    turns = module("turns")
    results = turns.Results([turn(name, s) for name, s in seconds.items()])
    assert results.best(turns.EXTERNAL, "qa") == "hf_prompt_lookup_8"
    assert results.best(turns.FIXED, "qa") == "lookup"
    assert results.ratio("planner", "lookup", ["qa"]).mean == pytest.approx(1.5)


def test_without_the_base_all_are_compared_with_autoregressive_decoding(module, turn):
    turns = [turn("autoregressive", 11.0), turn("planner", 11.2)]
    results = module("turns").Results(turns)
    assert results.speedups["planner"]["qa"]["a"] == pytest.approx(1 / 1.02)


def test_tables_are_made_of_one_turn_per_method(module, turn, capsys):
    module("turns").show([turn("hf_generate", 11.0), turn("planner", 6.0)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["planner", "2.000", "1", "2.00"] in lines
    assert ["qa", "hf_generate", "1.000", "2.000", "-", "-", "-"] in lines


def test_categories_of_unequal_size_count_alike(module):
    ratio = module("common").by_category({"a": [2.0], "b": [8.0, 8.0, 8.0]})
    assert ratio.mean == pytest.approx(4.0)
    assert ratio.interval.low <= 4.0 <= ratio.interval.high


def test_a_prompt_read_in_chunks_is_one_prefill(module):
    common = module("common")
    seen = [common.Forward(512, 3.0), common.Forward(88, 1.0), common.Forward(4, 0.5)]
    forwards = common.Forwards(seen)
    assert forwards.reading_s(599) == pytest.approx(4.0)
    assert forwards.seconds == pytest.approx(4.5)


def test_texts_part_where_one_ends(module):
    planner = module("planner")
    assert planner.first_difference((1, 2, 3), (1, 2, 3)) is None
    assert planner.first_difference((1, 2, 3), (1, 9, 3)) == 1
    assert planner.first_difference((1, 2), (1, 2, 3)) == 2
    assert planner.cut([1, 7, 2], (7,), 5) == (1, 7)


def test_all_default_methods_exist(module):
    planner = module("planner")
    for names in (planner.PAIR, planner.ALONE, planner.SAMPLED, planner.USELESS):
        for name in names.split(","):
            assert planner.is_peer(name) != planner.is_ours(name), name


def test_recording_is_timed_by_part_and_left_as_it_was(module, capsys):
    """What is not recorded takes no time, and nobody else is watched afterwards."""
    bench, common = module("recording"), module("common")
    before = (decoder.record_step, decoder.trace_nodes, recording._optima)
    model = TableModel(lambda text: [float(token == 1) for token in range(5)], 5)
    toy = SpeculativeDecoder(
        target=model,
        drafter=PromptLookup(),
        policy=Chain(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=Constant(2, 1, 2),
    )
    tasks = [common.Task(name, "x", (0, 1, 1, 1)) for name in "ab"]
    turns = bench.measure(toy, tasks, 9, 2)
    assert [len(turns[way]["a"]) for way in bench.WAYS] == [2, 2, 2]
    nothing, steps, nodes = (turns[way]["b"][0] for way in bench.WAYS)
    assert set(nothing.spent.values()) == {0.0}
    assert steps.spent["step records"] > 0 == steps.spent["node records"]
    assert min(nodes.spent.values()) > 0
    assert nodes.num_nodes == steps.num_nodes > 0
    assert (decoder.record_step, decoder.trace_nodes, recording._optima) == before
    bench.show(turns)
    shown = capsys.readouterr().out
    assert "nodes  optimal acceptance" in shown
    assert "nodes over steps" in shown
