"""The numbers behind the charts, against summaries and hand-worked values."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.analysis.conftest import write_run
from tests.analysis.test_plots import PROFILE
from tests.outcomes import make_outcome, make_result, make_step, make_steps
from treespec.acceptance_metrics import node_acceptance
from treespec.analysis import load_results, results_of, tables
from treespec.datasets.base import turn_id
from treespec.errors import TreespecError
from treespec.metrics import summarize
from treespec.outcome import PromptOutcome
from treespec.stats import wilson_interval
from treespec.types import NodeTrace


def outcome_of(steps, plain_s=0.010, traces=()):
    """Return a prompt with these steps, whose plain steps take ``plain_s``."""
    speculative = make_result(steps, traces=traces)
    plain = [
        make_step(0, (), number, step_s=plain_s, verify_s=plain_s)
        for number in range(len(speculative.tokens) - 1)
    ]
    return PromptOutcome("a", "qa", speculative, make_result(plain), "identical")


def test_acceptance_by_depth_is_that_of_the_summary(sweep, one):
    summary = json.loads((sweep / "k1/summary.json").read_text())
    frame = tables.acceptance_by_depth(one)
    assert list(frame["rate"]) == summary["acceptance_rate_by_depth"]
    ends = frame[["low", "high"]].to_numpy().tolist()
    assert ends == summary["acceptance_rate_by_depth_ci95"]
    conditional = summary["acceptance_rate_by_depth_conditional"]
    assert list(frame["conditional_rate"]) == conditional


def test_only_nodes_with_children_put_acceptance_to_the_test():
    """A leaf that was reached and a step without a tree say nothing of what follows."""
    steps = [
        make_step(1, (1,)),  # a bonus token: depth 2 was never drafted
        make_step(1, (1, 1), 1),  # depth 2 was rejected
        make_step(0, (), 2),
    ]
    frame = tables.acceptance_by_depth(results_of([outcome_of(steps)]))
    assert list(frame["num_arrived"]) == [2, 1]
    assert list(frame["conditional_rate"]) == [1.0, 0.0]
    assert list(frame["rate"]) == [2 / 3, 0.0]


def test_acceptance_by_rank_counts_judged_nodes_only(one):
    frame = tables.acceptance_by_rank(one).set_index("rank")
    num_steps = int(one.runs["num_steps"].iloc[0])
    assert frame.loc[0, "num_judged"] == 2 * num_steps  # one judged at either depth
    assert frame.loc[0, "rate"] == 0.5
    assert frame.loc[1, "num_accepted"] == 0
    interval = wilson_interval(num_steps, 2 * num_steps)
    assert frame.loc[0, ["low", "high"]].tolist() == [interval.low, interval.high]


def test_rule_and_bound_pool_to_the_numbers_of_the_summary():
    traces = (
        NodeTrace(0, 1, 0, 1, 0, 11, "d", 0.5, 0.5, "accepted", 0.8),
        NodeTrace(0, 2, 0, 1, 1, 12, "d", 0.5, 0.3, "rejected", 0.8),
        NodeTrace(0, 3, 1, 2, 0, 13, "d", 0.5, 0.1, "rejected", 0.4),
        NodeTrace(0, 4, 2, 2, 0, 14, "d", 0.5, 0.1, "unreached", None),
        NodeTrace(1, 1, 0, 1, 0, 11, "d", 0.5, 0.5, "rejected", 0.6),
    )
    outcome = outcome_of(make_steps((1, 0), (2, 2)), traces=traces)
    frame = tables.rule_and_bound(results_of([outcome]))
    assert list(frame["num_evaluated"]) == [2, 1]
    assert list(frame["rate"]) == [0.5, 0.0]
    assert list(frame["optimal"]) == pytest.approx([0.7, 0.4])
    known = node_acceptance([outcome.speculative])
    pooled = np.average(frame["gap"], weights=frame["num_evaluated"])
    assert pooled == pytest.approx(known["node_acceptance_gap"])


def test_reliability_bins_probabilities_by_source(one):
    frame = tables.reliability(one, num_bins=10).set_index(["source", "bin"])
    num_steps = int(one.runs["num_steps"].iloc[0])
    assert frame.loc[("copy", 9), "mean_prob"] == pytest.approx(0.9)
    assert frame.loc[("copy", 9), "rate"] == 1.0
    assert frame.loc[("copy", 0), "num_accepted"] == 0
    assert frame.loc[("model", 5), "num_judged"] == num_steps
    with pytest.raises(TreespecError, match="num_bins"):
        tables.reliability(one, num_bins=0)


def test_a_certain_draft_falls_into_the_last_bin():
    judged = {
        "judged_sources": ("d",),
        "judged_ranks": (0,),
        "judged_depths": (1,),
        "judged_probs": (1.0,),
        "judged_accepted": (True,),
    }
    outcome = outcome_of([make_step(1, (1,), **judged)])
    assert list(tables.reliability(results_of([outcome]), 4)["bin"]) == [3]


def test_forecasts_are_compared_in_bins_of_equal_size():
    expected = (0.1, 0.2, 1.0, 2.0)
    steps = [
        make_step(number // 2, (1, 1), number, expected_accepted=value)
        for number, value in enumerate(expected)
    ]
    found = results_of([outcome_of(steps)])
    frame = tables.expected_and_realised(found, num_bins=2)
    assert list(frame["expected"]) == pytest.approx([0.15, 1.5])
    assert list(frame["realised"]) == [0.0, 1.0]


def test_speedups_by_category_are_those_of_the_summary(sweep, one):
    summary = json.loads((sweep / "k1/summary.json").read_text())
    frame = tables.speedup_by_category(one).set_index("category")
    for category, numbers in (*summary["categories"].items(), ("all", summary)):
        row = frame.loc[category]
        assert row["speedup"] == pytest.approx(numbers["speedup"])
        interval = numbers["speedup_ci95"]
        if interval is None:
            assert np.isnan(row["low"])
        else:
            assert [row["low"], row["high"]] == pytest.approx(interval)
    assert frame.loc["story", "num_prompts"] == 1


def test_the_turns_of_a_conversation_are_one_prompt():
    """Six turns once counted as six prompts, with an interval of six."""
    accepted = [(2, 0, 1), (0, 0), (2, 2), (1,), (0, 1), (2, 1, 1)]
    outcomes = [
        replace(
            make_outcome(turn_id(f"p/{place // 2}", place % 2 + 1), accepted=kept),
            turn=place % 2 + 1,
        )
        for place, kept in enumerate(accepted)
    ]
    frame = tables.speedup_by_category(results_of(outcomes)).set_index("category")
    summary = summarize(outcomes, 1.0)
    assert frame.loc["all", "num_prompts"] == summary["num_prompts"] == 3
    assert frame.loc["all", "speedup"] == pytest.approx(summary["speedup"])
    assert np.isnan(frame.loc["all", "low"])
    assert summary["speedup_ci95"] is None


def test_the_peak_is_the_fastest_run_of_its_kind(results):
    frame = tables.speed_by_nodes(results)
    assert set(frame["run"]) == {"k1", "k2"}  # a failed run has no speed
    assert frame["is_peak"].all()  # the two are equally fast
    assert not frame["mean_nodes"].isna().any()


def test_latencies_are_sorted_and_end_at_all_requests(one):
    frame = tables.latencies(one)
    for _, side in frame.groupby("mode"):
        assert side["latency_ms"].is_monotonic_increasing
        assert side["share"].iloc[-1] == 1.0
        assert len(side) == len(one.prompts)


def test_phases_fill_a_generation_from_its_first_token_to_its_last(one):
    frame = tables.phases_of_generation(one, "p0")
    tokens = tables.tokens_over_time(one, "p0")
    first = tokens[tokens["mode"] == "speculative"]["time_s"]
    assert frame["start_s"].min() == pytest.approx(first.iloc[0])
    assert (frame["start_s"] + frame["length_s"]).max() == pytest.approx(first.iloc[-1])
    assert frame["length_s"].sum() == pytest.approx(first.iloc[-1] - first.iloc[0])
    with pytest.raises(TreespecError, match="prompt 'nobody' is not in run k1"):
        tables.tokens_over_time(one, "nobody")


def test_one_run_must_be_meant(results):
    with pytest.raises(TreespecError, match="run must be named"):
        tables.tokens_over_time(results, "p0")


def test_shares_of_time_are_those_of_the_summary(one):
    frame = tables.time_shares(one)
    assert frame["share"].sum() == pytest.approx(1.0)
    assert dict(zip(frame["phase"], frame["share"], strict=True))[
        "verify"
    ] == pytest.approx(0.7)


def test_no_forward_is_below_the_roofline_and_some_are_on_it():
    class Costs:
        def target(self, num_rows):
            return max(0.1, 0.02 * num_rows) + 0.001 * (num_rows == 3)

        def draft(self, num_rows):
            return 0.01 + 0.001 * num_rows

    curve = tables.cost_curve(Costs())
    for model, rows in curve.groupby("model"):
        roof = tables.roofline(rows)
        assert (roof["seconds"].to_numpy() <= rows["seconds"].to_numpy()).all()
        assert np.isclose(roof["seconds"], rows["seconds"]).sum() >= 2
        if model == "target":
            bound = dict(zip(roof["num_rows"], roof["bound"], strict=True))
            assert (bound[4], bound[6]) == ("memory", "compute")


@pytest.mark.parametrize(
    ("accepted", "num_steps", "pays"),
    [(2, 20, "yes"), (0, 20, "no"), (1, 20, "unsure"), (2, 5, "unsure")],
)
def test_a_tree_pays_if_it_keeps_more_than_its_time_costs(accepted, num_steps, pays):
    # A step takes twice as long as a plain one: it must keep more than one draft.
    steps = [
        make_step(accepted, (2, 2), number, step_s=0.020) for number in range(num_steps)
    ]
    frame = tables.break_even(results_of([outcome_of(steps)]))
    assert frame["break_even"].iloc[0] == pytest.approx(1.0)
    assert list(frame["pays"]) == [pays]


def test_cutting_trees_by_depth_weighs_what_is_lost_and_saved():
    # Depth 1: 0.012 s, always accepted. Depth 2 costs 0.018 s more and never is.
    steps = [make_step(1, (1, 3), n, step_s=0.030) for n in range(10)]
    steps += [make_step(1, (1,), n, step_s=0.012) for n in range(10, 20)]
    frame = tables.forecast_by_depth(results_of([outcome_of(steps)]))
    assert list(frame["depth"]) == [0, 1, 2]
    assert list(frame["is_best"]) == [False, True, False]
    assert list(frame["speedup"]) == pytest.approx([1.0, 2 / 1.2, 2 / 2.1])
    measured = results_of([outcome_of(steps)])
    assert tables.forecast_speedup(measured, measured) == pytest.approx(2 / 2.1)


def test_a_forecast_needs_one_measured_run(results, one):
    with pytest.raises(TreespecError, match="one run with measured ones"):
        tables.forecast_speedup(one, results)


def test_a_run_without_steps_has_empty_tables_with_columns(tmp_path):
    found = load_results(write_run(tmp_path, "k", [make_outcome(accepted=())]))
    for function in (tables.acceptance_by_rank, tables.reliability, tables.break_even):
        frame = function(found)
        assert frame.empty
        assert "run" in frame.columns


def test_a_profile_has_its_fit_and_the_limit_of_the_machine_beside_it():
    frame = tables.cost_profile(PROFILE)
    (row,) = frame.query("model == 'target' and num_rows == 16 and length == 8").index
    columns = ["seconds", "fitted", "floor"]
    assert frame.loc[row, columns].tolist() == pytest.approx([0.26, 0.26, 0.08])
    assert frame.loc[frame["model"] == "draft", "floor"].isna().all()


def test_runs_are_compared_on_the_prompts_that_both_finished(results):
    frame = tables.comparisons(results)
    assert list(frame["run"] + frame["other"]) == ["k1k2"]  # no failed, no killed run
    assert frame["num_prompts"].iloc[0] == 7
    assert frame["ratio"].iloc[0] == 1.0
    assert frame["adjusted_p_value"].iloc[0] == 1.0
    assert tables.comparisons(results.only("k1")).empty


def test_forwards_that_requests_shared_are_no_costs_of_one():
    """Each request's share of a forward stood beside its own rows alone."""
    outcomes = [make_outcome(accepted=(1, 2))]
    alone = tables.measured_costs(results_of(outcomes))
    shared = tables.measured_costs(results_of(outcomes, config={"max_concurrent": 4}))
    assert len(alone) > 0
    assert shared.empty


def test_a_forecast_is_not_held_against_a_step_that_a_limit_cut():
    steps = [make_step(1, (2,), 0), make_step(1, (2,), 1)]
    told = [replace(step, expected_accepted=1.5) for step in steps]
    cut = [told[0], replace(told[1], next_kind=None)]
    for given, count in ((told, 2), (cut, 1)):
        frame = tables.expected_and_realised(results_of([outcome_of(given)]))
        assert frame["num_steps"].sum() == count
