"""Regret and bounds, against values worked out by hand."""

from dataclasses import replace

import pytest

from tests.outcomes import make_outcome, make_result, make_step
from tests.sweeps import (
    COSTS,
    PLANNER,
    constant,
    prompts,
    scaled,
    write_run,
    write_sweep,
)
from treespec.costs import Costs
from treespec.regret import ALL, acceptance_by_source, regret
from treespec.sweep import PLAIN, read_sweep


def rows_of(folder, planner=None):
    report = regret(read_sweep(folder, planner), COSTS)
    return {row.category: row for row in report.rows}


def with_steps(outcome, **changes):
    """Return a prompt whose speculative steps are changed."""
    steps = [replace(step, **changes) for step in outcome.speculative.steps]
    return replace(outcome, speculative=make_result(steps))


def test_regret_is_to_the_best_fixed_strategy_of_each_category(tmp_path):
    """By hand: 40 ms over the chain's 30, 60 ms over the tree's 80, 100 over 140.

    Over all prompts there is one best strategy, which need not be the best in each
    category.
    """
    write_sweep(tmp_path)
    rows = rows_of(tmp_path)
    assert list(rows) == ["qa", "story", ALL]
    assert [row.regret.best.run_key for row in rows.values()] == [
        "chain3",
        "tree",
        "tree",
    ]
    assert [row.regret.ratio for row in rows.values()] == pytest.approx(
        [40 / 30 - 1, 60 / 80 - 1, 100 / 140 - 1]
    )
    assert [row.num_decoded for row in rows.values()] == [12, 12, 24]
    assert [row.num_prompts for row in rows.values()] == [1, 1, 2]


def test_not_to_speculate_is_a_fixed_strategy_too(tmp_path):
    write_run(tmp_path, "a", [scaled(make_outcome(accepted=(0, 0)), 3.0)])
    slow = with_steps(make_outcome(accepted=(1,)), step_s=0.025)
    write_run(tmp_path, "b", [slow], policy=PLANNER)
    found = rows_of(tmp_path)["qa"].regret
    assert found.best.name == PLAIN
    assert found.ratio == pytest.approx(25 / 20 - 1)


def test_a_machine_that_slowed_down_between_runs_is_told_apart(tmp_path):
    """The chain ran while the machine was half as fast: by seconds it is no match.

    Against the plain decoding that it did in turns with, and by the profile, it is the
    faster one as before.
    """
    write_run(tmp_path, "p", prompts({"qa": [(2,) * 4]}), policy=PLANNER)
    (chain,) = prompts({"qa": [(3,) * 3]})
    write_run(tmp_path, "c", [scaled(chain, 1.5)])
    found = rows_of(tmp_path)["qa"].regret
    assert found.best.run_key == "c"
    assert found.ratio == pytest.approx(40 / 45 - 1)
    assert found.of_speedup == pytest.approx(40 / 30 - 1)
    assert found.priced == pytest.approx(40 / 30 - 1)


def test_a_longer_text_is_no_regret(tmp_path):
    """Sampled texts differ in length; time per token is what compares."""
    write_run(tmp_path, "p", prompts({"qa": [(2,) * 8]}), policy=PLANNER)
    write_run(tmp_path, "c", prompts({"qa": [(2,) * 4]}))
    assert rows_of(tmp_path)["qa"].regret.ratio == pytest.approx(0.0)


def test_the_interval_is_paired_over_prompts(tmp_path):
    """Ten per cent slower on each prompt, be it short or long: nothing is uncertain."""
    texts = [(2,) * (1 + 3 * place) for place in range(6)]
    slower = [
        replace(o, speculative=scaled(o, 1.1).speculative)
        for o in prompts({"qa": texts})
    ]
    write_run(tmp_path, "p", slower, policy=PLANNER)
    write_run(tmp_path, "c", prompts({"qa": texts}))
    found = rows_of(tmp_path)["qa"].regret
    assert found.ratio == pytest.approx(0.1)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.1, 0.1))


def test_the_interval_is_as_wide_as_prompts_differ(tmp_path):
    factors = [0.8, 0.9, 1.0, 1.2, 1.4, 1.3]
    own = [
        replace(o, speculative=scaled(o, factor).speculative)
        for o, factor in zip(prompts({"qa": [(2,) * 4] * 6}), factors, strict=True)
    ]
    write_run(tmp_path, "p", own, policy=PLANNER)
    write_run(tmp_path, "c", prompts({"qa": [(2,) * 4] * 6}))
    found = rows_of(tmp_path)["qa"].regret
    assert found.interval.low < 0.0 < found.ratio < found.interval.high
    assert found.interval.high - found.interval.low < 0.6


def test_turns_of_a_conversation_are_one_prompt(tmp_path):
    """Three conversations are no six prompts, and too few for an interval."""
    texts = prompts({"qa": [(1, 2)] * 6})
    turns = [
        replace(o, id=f"c{n // 2}" + "/2" * (n % 2), turn=1 + n % 2)
        for n, o in enumerate(texts)
    ]
    write_run(tmp_path, "chain", turns)
    write_run(tmp_path, "planner", turns, policy=PLANNER)
    row = rows_of(tmp_path)["qa"]
    assert row.num_prompts == 3
    assert row.regret.interval is None


def test_each_way_to_tell_regret_has_the_strategy_that_is_best_by_it(tmp_path):
    """The faster chain ran while the machine was slow: by seconds another is best."""
    write_run(tmp_path, "planner", prompts({"qa": [(2, 2, 2)] * 5}), policy=PLANNER)
    write_run(tmp_path, "short", prompts({"qa": [(1,) * 5] * 5}))
    long = [scaled(o, 3.0) for o in prompts({"qa": [(4, 4)] * 5})]
    write_run(tmp_path, "long", long, controller=constant(5))
    found = rows_of(tmp_path)["qa"].regret
    assert found.best.run_key == "short"
    assert found.ratio < 0 < found.of_speedup
    assert found.priced > 0


def test_four_prompts_have_a_regret_and_no_interval(tmp_path):
    write_run(tmp_path, "p", prompts({"qa": [(2,) * 4] * 4}), policy=PLANNER)
    write_run(tmp_path, "c", prompts({"qa": [(1,) * 6] * 4}))
    found = rows_of(tmp_path)["qa"].regret
    assert found.interval is None
    assert found.ratio == pytest.approx(40 / 60 - 1)


def test_bounds_are_those_of_the_known_text(tmp_path):
    """Twelve tokens in one forward: 12 ms for 8 rows, 2/7 ms for each of 4 more.

    With a millisecond per draft forward it is one forward still, and 11 ms more.
    """
    write_sweep(tmp_path)
    bounds = rows_of(tmp_path)["qa"].bounds
    one_forward_s = 0.012 + 4 * 0.002 / 7 + 0.0005
    assert bounds.free_draft_s == pytest.approx(one_forward_s)
    assert bounds.chain_draft_s == pytest.approx(one_forward_s + 0.011)
    assert bounds.measured_s == pytest.approx(0.040)
    # Four steps of 7 rows and two draft forwards.
    step_s = 0.010 + 6 * 0.002 / 7 + 0.0005 + 0.002
    assert bounds.priced_s == pytest.approx(4 * step_s)
    assert bounds.planned_s is None


def test_bounds_of_all_prompts_are_sums(tmp_path):
    write_sweep(tmp_path)
    rows = rows_of(tmp_path)
    for name in ("measured_s", "priced_s", "free_draft_s", "chain_draft_s"):
        qa, story, both = (getattr(row.bounds, name) for row in rows.values())
        assert both == pytest.approx(qa + story)


def test_what_the_planner_expected_stands_beside_what_it_took(tmp_path):
    (outcome,) = prompts({"qa": [(2,) * 4]})
    write_run(tmp_path, "p", [with_steps(outcome, expected_s=0.008)], policy=PLANNER)
    write_run(tmp_path, "c", [outcome])
    bounds = rows_of(tmp_path)["qa"].bounds
    assert bounds.planned_s == pytest.approx(0.032)
    assert bounds.measured_s == pytest.approx(0.040)


def test_without_a_draft_model_nothing_is_said_of_its_costs(tmp_path):
    (outcome,) = prompts({"qa": [(2,) * 4]})
    free = with_steps(outcome, num_draft_forwards=0)
    write_run(tmp_path, "p", [free], policy=PLANNER)
    write_run(tmp_path, "c", [free])
    report = regret(read_sweep(tmp_path), COSTS)
    assert report.break_even == {}
    assert report.rows[0].bounds.chain_draft_s is None
    write_run(tmp_path, "d", [outcome])
    report = regret(read_sweep(tmp_path), COSTS)
    assert report.rows[0].bounds.chain_draft_s is not None


def test_the_draft_models_context_is_part_of_its_bound(tmp_path):
    """Reading a prompt of three tokens and the first new one costs a second a token."""
    costs = Costs.through({1: 0.5, 12: 0.5}, {1: 0.001, 2: 1.0, 3: 2.0, 4: 3.0})
    outcomes = prompts({"qa": [(2,) * 4]})
    drafter = {"drafters": [{"n": 1}, {"context": 1}, {"context": None}]}
    write_run(tmp_path, "c", outcomes, drafter=drafter)
    write_run(tmp_path, "p", outcomes, drafter=drafter, policy=PLANNER)
    write_run(tmp_path, "q", outcomes, policy=PLANNER)
    limited, whole = (
        regret(read_sweep(tmp_path, key), costs).rows[0].bounds for key in ("p", "q")
    )
    assert limited.chain_draft_s == pytest.approx(0.5 + 11 * 0.001)
    assert whole.chain_draft_s == pytest.approx(0.5 + 3.0 + 10 * 0.001)


def test_break_even_is_where_a_chain_costs_what_it_brings(tmp_path):
    """One draft: (1 + 10 + 2/7) ms over 10 ms are 1.129 tokens: 12.9% must be kept."""
    write_sweep(tmp_path)
    report = regret(read_sweep(tmp_path), COSTS)
    assert list(report.break_even) == [1, 2, 4, 8]
    assert report.break_even[1] == pytest.approx(0.1 + 0.2 / 7)


def test_acceptance_counts_first_children_of_each_source():
    step = make_step(
        1,
        (3, 1),
        judged_sources=("draft", "draft", "lookup", "draft"),
        judged_ranks=(0, 1, 0, 0),
        judged_depths=(1, 1, 1, 2),
        judged_probs=(0.5, 0.4, 0.3, 0.2),
        judged_accepted=(True, False, False, False),
    )
    assert acceptance_by_source([make_result([step])]) == {"draft": 0.5, "lookup": 0.0}
    assert acceptance_by_source([make_result([make_step(0, ())])]) == {}


def test_the_share_of_first_choices_that_were_kept_is_told_per_category(tmp_path):
    write_run(tmp_path, "c", prompts({"qa": [(1,)], "story": [(1,)]}))
    kept, other = prompts({"qa": [(1,)], "story": [(1,)]})
    judged = {
        "judged_sources": ("draft", "draft"),
        "judged_ranks": (0, 1),
        "judged_depths": (1, 1),
        "judged_probs": (0.5, 0.5),
        "judged_accepted": (True, False),
    }
    own = [with_steps(kept, **judged), other]
    write_run(tmp_path, "p", own, policy=PLANNER)
    rows = rows_of(tmp_path)
    assert rows["qa"].first_choice_acceptance == 1.0
    assert rows["story"].first_choice_acceptance is None


@pytest.mark.parametrize("texts", [{"qa": [()]}, {}])
def test_nothing_to_decode_is_neither_regret_nor_an_error(tmp_path, texts):
    write_run(tmp_path, "p", prompts(texts), policy=PLANNER)
    write_run(tmp_path, "c", prompts(texts))
    row = rows_of(tmp_path)[ALL]
    assert row.regret is None
    assert row.num_decoded == 0
    assert row.bounds.free_draft_s == 0.0
