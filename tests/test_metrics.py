"""Every number of the summary, against hand-worked values."""

import json
import math
from dataclasses import replace

import pytest

from tests.outcomes import (
    PREFILL_S,
    STEP_S,
    make_outcome,
    make_result,
    make_step,
    make_steps,
)
from treespec import metrics
from treespec.metrics import summarize
from treespec.outcome import Divergence, Quality
from treespec.types import NodeTrace

CHAIN_STEPS = make_steps((4, 0, 2, 1), (1, 1, 1, 1))
TREE_STEPS = make_steps((2, 0, 1), (2, 4))


def test_chain_statistics_are_those_of_the_worked_example():
    """Public case 33. A chain of four accepts 4, 0, 2, 1: each number has one meaning.

    Projects have counted the bonus into "acceptance", skipped the first position, and
    divided by steps where others divide by drafted tokens.
    """
    steps = CHAIN_STEPS
    assert len(steps) == 4
    assert sum(step.num_nodes for step in steps) == 16
    assert sum(step.num_accepted for step in steps) == 7
    assert sum(step.num_committed for step in steps) == 11
    assert metrics.acceptance_rate(steps) == pytest.approx(0.4375)
    assert metrics.acceptance_rate_of_evaluated(steps) == pytest.approx(0.70)
    assert metrics.num_accepted_per_step(steps) == pytest.approx(1.75)
    assert metrics.mean_acceptance_length(steps) == pytest.approx(2.75)
    by_depth = metrics.acceptance_by_depth(steps)
    assert by_depth["acceptance_rate_by_depth"] == [0.75, 0.5, 0.25, 0.25]
    assert by_depth["acceptance_rate_by_depth_conditional"] == pytest.approx(
        [0.75, 2 / 3, 0.5, 1.0]
    )


def test_tree_statistics_are_those_of_the_worked_example():
    """Public case 33. Trees of 2 and 4 nodes, accepted to depths 2, 0 and 1."""
    steps = TREE_STEPS
    assert sum(step.num_nodes for step in steps) == 18
    assert sum(step.num_accepted for step in steps) == 3
    assert metrics.acceptance_rate(steps) == pytest.approx(1 / 6)
    assert metrics.acceptance_rate_of_evaluated(steps) is None
    assert metrics.mean_acceptance_length(steps) == pytest.approx(2.0)
    by_depth = metrics.acceptance_by_depth(steps)
    assert by_depth["acceptance_rate_by_depth"] == pytest.approx([2 / 3, 1 / 3])
    assert by_depth["acceptance_rate_by_depth_conditional"] == pytest.approx(
        [2 / 3, 0.5]
    )


def test_autoregressive_decoding_commits_exactly_one_token_per_forward():
    """Public case 33: some count it as 0, some as 2."""
    steps = make_steps((0,) * 10, ())
    assert metrics.mean_acceptance_length(steps) == 1.0
    assert metrics.skip_rate(steps) == 1.0
    assert metrics.acceptance_rate(steps) is None


def test_tokens_of_a_cut_step_count_nowhere():
    """Public case 33. Three drafts were accepted; the second was the text's end."""
    cut = replace(make_step(2, (1, 1, 1, 1)), num_committed=2, next_kind=None)
    assert metrics.mean_acceptance_length([cut]) == 2.0
    # Depth 3 was never compared, so it is neither a hit nor a miss there.
    assert metrics.acceptance_by_depth([cut])[
        "acceptance_rate_by_depth_conditional"
    ] == [1.0, 1.0, None, None]
    assert metrics.acceptance_rate_of_evaluated([cut]) == 1.0


def test_a_short_branch_accepted_to_its_leaf_is_no_miss_one_deeper():
    leaf_at_one = make_step(1, (2, 2), next_kind="bonus")
    by_depth = metrics.acceptance_by_depth([leaf_at_one])
    assert by_depth["acceptance_rate_by_depth"] == [1.0, 0.0]
    assert by_depth["acceptance_rate_by_depth_conditional"] == [1.0, None]


def test_depths_are_pooled_over_trees_of_different_depth():
    steps = [*make_steps((1,), (1,)), *make_steps((0, 3), (1, 1, 1))]
    by_depth = metrics.acceptance_by_depth(steps)
    assert by_depth["acceptance_rate_by_depth"] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    low, high = by_depth["acceptance_rate_by_depth_ci95"][0]
    assert low < 2 / 3 < high


def test_rank_histogram_counts_accepted_nodes_by_draw_order():
    steps = [
        make_step(2, (3, 3), accepted_ranks=(0, 2)),
        make_step(1, (3, 3), accepted_ranks=(0,)),
    ]
    assert metrics.accepted_rank_histogram(steps) == [2, 0, 1]
    assert metrics.accepted_rank_histogram([]) == []


def test_a_step_that_found_no_draft_is_not_a_skipped_step():
    nothing_found = make_step(0, (), max_depth=4, max_nodes=8)
    off = make_step(0, ())
    drafted = make_step(1, (1,))
    steps = [nothing_found, off, drafted, drafted]
    assert metrics.skip_rate(steps) == 0.25
    assert metrics.no_draft_rate(steps) == 0.25


def test_speedup_is_the_ratio_of_total_times_not_the_mean_of_ratios():
    fast = make_outcome("a", accepted=(2,) * 10)  # 30 tokens in 10 steps
    slow = make_outcome("b", accepted=(0,) * 10)  # 10 tokens in 10 steps
    assert metrics.speedup([fast, slow]) == pytest.approx(40 / 20)
    assert metrics.speedup_geomean([fast, slow]) == pytest.approx(math.sqrt(3))
    assert metrics.prompt_speedup(fast) == pytest.approx(3.0)


def test_a_longer_text_counts_neither_for_nor_against_speculation():
    """A tie in bf16 let the two texts end at different lengths.

    The plain ratio of total times would call this prompt 1.0x: the baseline happened
    to stop after a third of the tokens.
    """
    outcome = make_outcome(accepted=(2,) * 10, num_baseline_tokens=11)
    assert metrics.speedup([outcome]) == pytest.approx(3.0)


def test_speedup_is_the_quotient_of_the_two_token_rates():
    outcomes = [
        make_outcome("a", accepted=(2, 1, 0), num_baseline_tokens=5),
        make_outcome("b", accepted=(0, 0, 1)),
    ]
    summary = summarize(outcomes, wall_s=1.0)
    assert summary["speedup"] == pytest.approx(
        summary["tokens_per_second"] / summary["baseline_tokens_per_second"]
    )


def test_speedup_interval_encloses_the_speedup():
    outcomes = [make_outcome(str(i), accepted=(i % 3, 1, 2)) for i in range(9)]
    low, high = metrics.speedup_ci95(outcomes)
    assert low < metrics.speedup(outcomes) < high


def test_four_prompts_are_too_few_for_an_interval():
    """Of two prompts the "interval" was just their two speed-ups."""
    outcomes = [make_outcome(str(i), accepted=(i % 3, 1, 2)) for i in range(4)]
    assert metrics.speedup_ci95(outcomes) is None


def test_unequal_plain_steps_tell_of_a_disturbed_machine():
    steps = make_steps((0,) * 10, (1,))
    assert metrics.baseline_step_spread(steps) == pytest.approx(1.0)
    slow = [replace(s, step_s=5 * s.step_s) for s in steps[:3]]
    assert metrics.baseline_step_spread([*slow, *steps[3:]]) == pytest.approx(5.0)
    assert metrics.baseline_step_spread([]) is None


def test_tokens_per_second_count_neither_the_prefill_nor_its_token():
    result = make_result(make_steps((1,) * 10, (1,)))
    assert len(result.tokens) == 21
    assert metrics.tokens_per_second([result]) == pytest.approx(20 / (10 * STEP_S))
    assert metrics.ttft_ms([result]) == pytest.approx(1e3 * PREFILL_S)


def test_time_shares_sum_to_one_and_the_rest_of_the_step_is_overhead():
    share = metrics.time_share(CHAIN_STEPS)
    assert list(share) == ["draft", "verify", "accept", "commit", "overhead"]
    assert sum(share.values()) == pytest.approx(1.0, abs=1e-12)
    assert share["verify"] == pytest.approx(0.7)
    assert share["overhead"] == pytest.approx(0.05)


def test_latency_is_prefill_plus_decode_per_request():
    outcomes = [make_outcome(str(i), accepted=(0,) * (i + 1)) for i in range(101)]
    latency = metrics.latency_ms([outcome.speculative for outcome in outcomes])
    assert latency["p50"] == pytest.approx(200 + 10 * 51)
    assert latency["p90"] == pytest.approx(200 + 10 * 91)
    assert latency["mean"] == pytest.approx(200 + 10 * 51)


def test_tokens_that_arrive_together_share_their_wait():
    result = make_result(make_steps((1, 0), (1,)))  # 10 ms for two, 10 ms for one
    gaps = metrics.inter_token_ms([result])
    assert gaps["p50"] == pytest.approx(5.0)
    assert gaps["p99"] == pytest.approx(10.0, rel=0.02)
    assert sum(metrics._token_gaps_ms(result)) == pytest.approx(1e3 * result.decode_s)


def test_lossless_counts_tell_ties_from_violations_and_from_what_was_not_checked():
    verdicts = ["identical", "identical", "tie", "violation", "unchecked"]
    outcomes = [make_outcome(str(i), lossless=v) for i, v in enumerate(verdicts)]
    assert metrics.lossless_counts(outcomes) == {
        "rule_is_lossless": True,
        "checked": 4,
        "identical": 2,
        "ties": 1,
        "violations": 1,
    }


def test_a_lossy_rule_is_neither_checked_nor_called_lossless():
    counts = metrics.lossless_counts([make_outcome(lossless="lossy")])
    assert counts["rule_is_lossless"] is False
    assert counts["checked"] == 0


def test_log_probabilities_are_means_over_tokens_not_over_texts():
    long = replace(
        make_outcome("a", accepted=(2, 2, 1), lossless="lossy"),  # 9 tokens
        quality=Quality(-1.0, -4.0),
    )
    short = replace(
        make_outcome("b", accepted=(1,), num_baseline_tokens=1, lossless="lossy"),
        quality=Quality(-2.0, -1.0),  # 3 tokens, 1 in the baseline
    )
    empty = replace(make_outcome("c", lossless="lossy"), quality=Quality(None, None))
    assert metrics.token_logprobs([long, short, empty]) == {
        "mean_token_logprob": pytest.approx(-(9 * 1.0 + 3 * 2.0) / 12),
        "baseline_mean_token_logprob": pytest.approx(-(9 * 4.0 + 1 * 1.0) / 10),
    }
    summary = summarize([make_outcome()], wall_s=1.0)
    assert summary["mean_token_logprob"] is None
    assert summary["baseline_mean_token_logprob"] is None


def node(step, number, parent, verdict, optimum):
    return NodeTrace(step, number, parent, 1, 0, 7, "draft", 0.5, 0.5, verdict, optimum)


def test_the_bound_gap_is_a_mean_over_evaluated_nodes():
    """Siblings share one optimum; nodes that were not compared count nowhere."""
    first = make_result(
        make_steps((1, 0), (2, 2)),
        traces=(
            node(0, 1, 0, "accepted", 0.9),
            node(0, 2, 0, "rejected", 0.9),
            node(0, 3, 1, "rejected", 0.5),
            node(0, 4, 2, "unreached", None),
            node(1, 1, 0, "rejected", 0.7),
            node(1, 2, 0, "rejected", 0.7),
        ),
    )
    second = make_result(  # another prompt, whose ids are the same
        make_steps((1,), (1, 1)),
        traces=(node(0, 1, 0, "accepted", 0.7), node(0, 2, 1, "cut", None)),
    )
    found = metrics.node_acceptance([first, second])
    assert found["node_acceptance"] == 2 / 4
    assert found["optimal_node_acceptance"] == pytest.approx((0.9 + 0.5 + 0.7 * 2) / 4)
    assert found["node_acceptance_gap"] == pytest.approx(0.2)
    assert set(metrics.node_acceptance([make_result(())]).values()) == {None}


def test_a_summary_lists_every_divergence_with_its_margin_and_noise():
    found = Divergence(index=3, margin=0.01, noise=0.02)
    outcomes = [
        make_outcome("a"),
        make_outcome("b", lossless="tie", divergence=found),
    ]
    assert summarize(outcomes, wall_s=1.0)["divergences"] == [
        {"id": "b", "lossless": "tie", "index": 3, "margin": 0.01, "noise": 0.02}
    ]


def test_summary_has_every_promised_name_over_all_and_per_category():
    outcomes = [
        make_outcome(str(i), category) for i, category in enumerate(("qa", "story") * 5)
    ]
    summary = summarize(outcomes, wall_s=2.0, peak_memory_bytes=10)
    promised = {
        "speedup": None,
        "speedup_ci95": None,
        "speedup_geomean": None,
        "speedup_geomean_ci95": None,
        "detectable_speedup": None,
        "tokens_per_second": None,
        "baseline_tokens_per_second": None,
        "mean_acceptance_length": None,
        "num_accepted_per_step": None,
        "acceptance_rate": None,
        "acceptance_rate_by_depth": None,
        "acceptance_rate_by_depth_conditional": None,
        "accepted_rank_histogram": None,
        "accepted_source_histogram": None,
        "mean_draft_forwards": None,
        "mean_candidates": None,
        "mean_nodes": None,
        "mean_depth": None,
        "skip_rate": None,
        "time_share": {"draft", "verify", "accept", "commit", "overhead"},
        "latency_ms": {"p50", "p90", "p99", "mean"},
        "baseline_latency_ms": {"p50", "p90", "p99", "mean"},
        "inter_token_ms": {"p50", "p99"},
        "ttft_ms": None,
        "lossless": {
            "rule_is_lossless",
            "checked",
            "identical",
            "ties",
            "violations",
        },
        "num_prompts": None,
        "num_tokens": None,
    }
    assert list(summary["categories"]) == ["qa", "story"]
    for group in (summary, *summary["categories"].values()):
        for name, parts in promised.items():
            assert group[name] is not None, name
            assert parts is None or set(group[name]) == parts
    assert summary["throughput_rps"] == 5.0
    assert summary["peak_memory_bytes"] == 10
    assert summary["categories"]["qa"]["num_prompts"] == 5


def test_a_category_has_the_numbers_of_a_run_of_its_own():
    qa = [make_outcome(str(i), "qa", accepted=(i % 3, 2)) for i in range(5)]
    story = [make_outcome(str(i), "story", accepted=(0, 0)) for i in range(5)]
    mixed = summarize([*qa, *story], wall_s=1.0)["categories"]["qa"]
    alone = summarize(qa, wall_s=1.0)
    assert mixed == {name: alone[name] for name in mixed}


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [make_outcome(accepted=())],
        [make_outcome(accepted=(0,))],
        [make_outcome("a", accepted=()), make_outcome("b", accepted=())],
    ],
    ids=["no prompt", "one token", "one prompt", "no decode step anywhere"],
)
def test_statistics_of_nearly_nothing_are_finite_or_null(outcomes):
    """Zero drafts and zero steps have been divided by in other projects."""
    summary = summarize(outcomes, wall_s=0.0)
    json.dumps(summary, allow_nan=False)
    assert summary["speedup_ci95"] is None
    assert summary["peak_memory_bytes"] is None


def test_no_new_token_at_all_gives_finite_statistics():
    empty = replace(
        make_result(()), tokens=(), token_times_s=(), prefill_s=0.0, decode_s=0.0
    )
    outcome = replace(make_outcome(), speculative=empty, baseline=empty)
    summary = summarize([outcome], wall_s=0.0)
    json.dumps(summary, allow_nan=False)
    assert summary["num_tokens"] == 0
    assert summary["speedup"] is None


def test_a_run_with_slow_warm_up_and_prefill_reports_only_decode_steps():
    """Prefill 200 ms, forwards 10 ms: a first call's 500 ms must be nowhere.

    The warm-up ends before any record begins, so records alone decide.
    """
    outcome = make_outcome(accepted=(1,) * 10, shape=(1,))
    summary = summarize([outcome], wall_s=1.0)
    assert summary["ttft_ms"] == pytest.approx(200)
    assert summary["latency_ms"]["p50"] == pytest.approx(200 + 10 * 10)
    assert summary["tokens_per_second"] == pytest.approx(20 / 0.1)


def test_the_geometric_mean_has_an_interval_of_its_own():
    """Ratio of sums and geometric mean answer different questions."""
    long = make_outcome("long", accepted=(2,) * 90)
    outcomes = [make_outcome(str(i), accepted=(i % 2,) * 3) for i in range(7)]
    summary = summarize([long, *outcomes], wall_s=1.0)
    low, high = summary["speedup_geomean_ci95"]
    assert low < summary["speedup_geomean"] < high < summary["speedup"]
    assert summarize(outcomes[:4], wall_s=1.0)["speedup_geomean_ci95"] is None


def test_prompts_that_scatter_more_show_less():
    alike = [make_outcome(str(i), accepted=(1, i % 2, 1, 1)) for i in range(8)]
    unlike = [make_outcome(str(i), accepted=(2 * (i % 2),) * 4) for i in range(8)]
    least = [summarize(o, wall_s=1.0)["detectable_speedup"] for o in (alike, unlike)]
    assert 0 < least[0] < 0.3 < least[1]


def test_prompts_that_end_at_once_do_not_count_for_an_interval():
    """Six prompts of which four had nothing to decode gave an interval of two."""
    some = [make_outcome(str(i), accepted=(i, 1)) for i in range(2)]
    none = [make_outcome(f"n{i}", accepted=()) for i in range(4)]
    assert summarize([*some, *none], wall_s=1.0)["speedup_ci95"] is None
