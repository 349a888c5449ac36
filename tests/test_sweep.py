"""What compares is read, and what does not is refused in one line."""

import json
import re
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.outcomes import make_outcome
from tests.sinks.runs import make_run, record
from tests.sweeps import (
    CHAIN,
    PLANNER,
    constant,
    prompts,
    scaled,
    write_run,
    write_sweep,
)
from treespec.errors import TreespecError
from treespec.sinks.base import recording
from treespec.sinks.run_folder import RunFolderSink
from treespec.sweep import PLAIN, read_sweep

TEXTS = [make_outcome("a"), make_outcome("b")]


def refusal(folder, planner=None):
    with pytest.raises(TreespecError) as refused:
        read_sweep(folder, planner)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(str(folder)) or line.startswith("planner=")
    return line


def fail_run(folder, key):
    run = make_run(folder, key, policy=CHAIN, controller=constant())
    with suppress(RuntimeError), recording([RunFolderSink()], run) as recorded:
        recorded.prompt(TEXTS[0])
        raise RuntimeError("out of memory, say")


def test_the_planner_is_told_from_fixed_strategies_by_its_configuration(tmp_path):
    write_sweep(tmp_path)
    adaptive = {"_target_": "my.EntropyStop"}
    write_run(
        tmp_path,
        "stop",
        prompts({"qa": [(2,) * 4], "story": [(1,) * 6]}),
        controller=adaptive,
    )
    sweep = read_sweep(tmp_path)
    assert sweep.planner.run_key == "planner"
    assert [c.run_key for c in sweep.fixed] == ["chain3", "tree", "planner"]
    assert sweep.fixed[-1].name == PLAIN
    assert [c.run_key for c in sweep.adaptive] == ["stop"]
    assert sweep.categories == ["qa", "story"]
    assert sweep.left_out == ()


def test_strategies_are_named_by_what_tells_them_apart(tmp_path):
    write_run(tmp_path, "a", TEXTS, controller=constant(3))
    write_run(tmp_path, "b", TEXTS, controller=constant(5))
    write_run(tmp_path, "c", TEXTS, policy=PLANNER, controller=constant(5))
    sweep = read_sweep(tmp_path)
    assert [c.name for c in sweep.fixed[:2]] == [
        "Chain max_depth=3",
        "Chain max_depth=5",
    ]
    assert sweep.planner.name == "Planner max_depth=5"


def test_a_list_of_drafters_is_named_by_their_classes(tmp_path):
    lookup, model = {"_target_": "x.Lookup", "n": 3}, {"_target_": "x.Model"}
    write_run(tmp_path, "a", TEXTS, drafter={"drafters": [lookup, model]})
    write_run(tmp_path, "b", TEXTS, drafter={"drafters": [lookup]}, policy=PLANNER)
    sweep = read_sweep(tmp_path)
    assert sweep.fixed[0].name == "drafters=Lookup+Model Chain"
    assert sweep.planner.name == "drafters=Lookup Planner"


def test_plain_decoding_of_the_planners_run_is_a_fixed_strategy(tmp_path):
    """A planner must not be slower than not to speculate at all."""
    write_sweep(tmp_path)
    sweep = read_sweep(tmp_path)
    for mine, plain in zip(
        sweep.planner.outcomes, sweep.fixed[-1].outcomes, strict=True
    ):
        assert plain.speculative == plain.baseline == mine.baseline


def test_a_run_can_be_named_the_one_in_question(tmp_path):
    write_sweep(tmp_path)
    sweep = read_sweep(tmp_path, "tree")
    assert sweep.planner.run_key == "tree"
    assert [c.run_key for c in sweep.fixed] == ["chain3", "tree"]
    assert [c.run_key for c in sweep.adaptive] == ["planner"]
    line = refusal(tmp_path, "no_such")
    assert line.startswith("planner=no_such is no finished run")
    assert line.endswith("chain3, planner, tree")


def test_failed_and_torn_runs_are_named_and_left_out(tmp_path):
    write_sweep(tmp_path)
    fail_run(tmp_path, "broken")
    torn = write_run(tmp_path, "torn", TEXTS)
    (torn / "prompts.jsonl").write_text("{")
    (tmp_path / "plots").mkdir()
    (tmp_path / "notes.txt").write_text("no run")
    sweep = read_sweep(tmp_path)
    first, second = sweep.left_out
    assert first.startswith("broken: failed: RuntimeError: out of memory, say; ")
    assert second.startswith("torn: ")
    assert "not JSON" in second


def test_a_folder_without_finished_runs_is_refused(tmp_path):
    assert "there is no such folder" in refusal(tmp_path / "nowhere")
    assert "no finished runs; give the folder of a sweep" in refusal(tmp_path)
    fail_run(tmp_path, "broken")
    line = refusal(tmp_path)
    assert "no finished runs (broken: failed: RuntimeError: out of memory" in line


def test_a_sweep_without_a_planner_or_with_several_is_refused(tmp_path):
    write_run(tmp_path, "a", TEXTS)
    assert "no finished run has a planner for its policy" in refusal(tmp_path)
    write_run(tmp_path, "b", TEXTS, policy=PLANNER)
    write_run(tmp_path, "c", TEXTS, policy={"_target_": "x.SampledPlanner"})
    assert refusal(tmp_path).endswith("choose with planner=RUN, of b, c")


def test_a_planner_alone_is_refused(tmp_path):
    write_run(tmp_path, "b", TEXTS, policy=PLANNER)
    assert "nothing to compare b with" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"max_new_tokens": 7}, "differ in max_new_tokens (None and 7)"),
        ({"seed": 1}, "differ in seed (0 and 1)"),
        (
            {"pair": {"draft": {"quantization": "int8"}}},
            "differ in pair.draft.quantization (None and 'int8')",
        ),
    ],
)
def test_other_models_and_settings_are_refused(tmp_path, config, says):
    write_run(tmp_path, "a", TEXTS)
    write_run(tmp_path, "b", TEXTS, policy=PLANNER, **config)
    assert says in refusal(tmp_path)


def test_what_does_not_matter_to_times_may_differ(tmp_path):
    write_run(tmp_path, "a", TEXTS, trace="nodes", output_root="x", drafter={"n": 1})
    write_run(tmp_path, "b", TEXTS, policy=PLANNER, trace="steps", sink=None)
    assert len(read_sweep(tmp_path).fixed) == 2


def test_other_prompts_are_refused(tmp_path):
    write_run(tmp_path, "a", TEXTS[:1])
    write_run(tmp_path, "b", TEXTS, policy=PLANNER)
    assert "a and b decoded different prompts" in refusal(tmp_path)


def test_the_same_names_with_other_words_are_other_prompts(tmp_path):
    other = replace(TEXTS[0].speculative, prompt_tokens=(1, 2))
    baseline = replace(TEXTS[0].baseline, prompt_tokens=(1, 2))
    outcome = replace(TEXTS[0], speculative=other, baseline=baseline)
    write_run(tmp_path, "a", [outcome, TEXTS[1]])
    write_run(tmp_path, "b", TEXTS, policy=PLANNER)
    assert "different prompts" in refusal(tmp_path)


def test_another_machine_is_refused_but_not_a_model_that_one_run_lacks(tmp_path):
    def run_on(key, policy, **environment):
        run = make_run(tmp_path, key, policy=policy, controller=constant())
        record([RunFolderSink()], replace(run, environment=environment), TEXTS)

    draft = {"draft": {"dtype": "int8"}}
    run_on("a", CHAIN, num_threads=2, models={"target": {"dtype": "float32"}})
    run_on(
        "b", PLANNER, num_threads=2, models={"target": {"dtype": "float32"}, **draft}
    )
    assert len(read_sweep(tmp_path).fixed) == 2
    run_on("c", CHAIN, num_threads=4, models={"target": {"dtype": "float32"}})
    assert "c and b differ in num_threads (4 and 2)" in refusal(tmp_path)


def test_a_lossy_rule_is_refused(tmp_path):
    write_run(tmp_path, "a", [make_outcome("a", lossless="lossy")])
    write_run(tmp_path, "b", [make_outcome("a")], policy=PLANNER)
    assert re.search("the rule of a is lossy", refusal(tmp_path))


def test_prompts_that_were_decoded_together_are_refused(tmp_path):
    write_run(tmp_path, "a", TEXTS, max_concurrent=4)
    write_run(tmp_path, "b", TEXTS, policy=PLANNER, max_concurrent=4)
    assert "sweep with max_concurrent=1" in refusal(tmp_path)


def test_times_of_the_hand_made_runs_scale():
    """The helper of these tests is one itself."""
    outcome = make_outcome()
    slow = scaled(outcome, 3.0)
    assert slow.speculative.decode_s == pytest.approx(3 * outcome.speculative.decode_s)


def test_a_run_over_another_baseline_is_refused(tmp_path):
    """Its baseline is not plain decoding, and has no steps to be priced."""
    write_sweep(tmp_path)
    run = tmp_path / "chain3"
    summary = json.loads((run / "summary.json").read_text())
    changed = {**summary, "baseline": "hf_generate"}
    (run / "summary.json").write_text(json.dumps(changed))
    line = refusal(tmp_path)
    assert "chain3 has baseline=hf_generate" in line
    assert "sweep with baseline=autoregressive" in line
