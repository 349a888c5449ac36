"""The table fits a terminal, explains itself, and tells the truth on losslessness."""

import io
from dataclasses import replace

import pytest

from tests.outcomes import STEP_S, make_outcome
from tests.sinks.runs import make_outcomes, make_run, record
from treespec.metrics import summarize
from treespec.outcome import FAR, Divergence, Quality, Repeat, Score
from treespec.sinks.terminal import TerminalSink, render


def _render(outcomes):
    return render(summarize(outcomes, wall_s=1.0))


def test_table_shows_every_headline_number_with_a_few_words():
    table = _render([make_outcome(str(i), accepted=(i % 3, 2, 0)) for i in range(6)])
    for words in (
        "Speed-up        2.00x     95% confidence interval 1.",
        "  by prompt     1.98x     geometric mean over prompts, 95% interval 1.",
        "  resolution    24%       smaller speed-ups cannot be told from none with",
        "Tokens/second   200.0     100.0 without speculation",
        "Tokens/forward  2.00      new tokens per target forward",
        "Drafts kept     17%       of all drafts that were checked; 6.0 per step",
        "by depth      56% 44%",
        "draft 20%, verify 70%, accept 2%, commit 3%, overhead 5%",
        "First token     200 ms",
    ):
        assert words in table


@pytest.mark.parametrize(
    "outcomes",
    [
        make_outcomes(),
        [make_outcome(category="a very long name of a category indeed")],
        [make_outcome(accepted=(20,), shape=(1,) * 20)],
        [make_outcome(accepted=(), lossless="unchecked")],
        [make_outcome(lossless="lossy")],
        [],
    ],
)
def test_table_fits_88_columns_whatever_happened(outcomes):
    table = _render(outcomes)
    assert max(len(line) for line in table.splitlines()) <= 88
    assert "nan" not in table
    assert "None" not in table


def test_the_optimum_is_told_of_where_nodes_were_traced():
    """One node was compared; it kept a child, which had a chance of 80% at best."""
    table = _render([make_outcome(traced=True)])
    assert "by node       100%      of the nodes that were compared kept" in table
    assert "80% is the most that a lossless rule could expect" in table


def _planned(**changes):
    """Return a prompt of four steps: two planned, two for which nothing was drafted."""
    outcome = make_outcome(accepted=(2, 1, 0, 0))
    fields = [
        {"expected_accepted": 2.0, "expected_s": 2 * STEP_S, "reason": "lookup"},
        {"expected_accepted": 1.8, "expected_s": STEP_S, "reason": "lookup"},
        {"reason": "off: the draft is too slow"},
        {"reason": "off: the draft is too slow"},
    ]
    steps = tuple(
        replace(step, **{**own, **changes})
        for step, own in zip(outcome.speculative.steps, fields, strict=True)
    )
    return replace(outcome, speculative=replace(outcome.speculative, steps=steps))


def test_a_planner_says_what_it_expected_what_came_and_when_it_was_off():
    table = _render([_planned()])
    assert (
        "Planned         2.90      tokens/forward, 2.50 came; steps took 0.67x the "
        "planned time\n"
    ) in table
    assert ("Speculation     off in 50% of the steps: the draft is too slow\n") in table


def test_reasons_share_a_line_that_fits():
    outcome = _planned(step_s=1e6)
    steps = [
        replace(step, reason=f"off: because of reason number {i}")
        for i, step in enumerate(outcome.speculative.steps)
    ]
    table = _render(
        [replace(outcome, speculative=replace(outcome.speculative, steps=steps))]
    )
    assert "off in 100% of the steps: because of reason number 0 (25%)" in table
    assert "number 3" not in table
    assert max(len(line) for line in table.splitlines()) <= 88


def test_policies_that_expect_nothing_have_no_lines_for_it():
    table = _render([make_outcome()])
    assert "Planned" not in table
    assert "Speculation  " not in table


def test_the_quality_of_a_lossy_rule_stands_below_its_verdict():
    outcome = make_outcome(lossless="lossy")
    table = _render([replace(outcome, quality=Quality(-1.25, -2.5))])
    assert "Quality         -1.250    mean log-probability" in table
    assert "-2.500 without speculation" in table
    assert "Quality" not in _render([make_outcome()])


def test_a_disturbed_machine_is_told_of():
    outcome = make_outcome(accepted=(0,) * 10)
    slow = [replace(step, step_s=9.0) for step in outcome.baseline.steps[:3]]
    steps = (*slow, *outcome.baseline.steps[3:])
    disturbed = replace(outcome, baseline=replace(outcome.baseline, steps=steps))
    assert "is the machine busy with other work?" in _render([disturbed])
    assert "busy" not in _render([outcome])


def test_categories_have_a_row_each():
    table = _render([make_outcome("a", "editing"), make_outcome("b", "story")])
    rows = [line.split()[0] for line in table.splitlines() if line[:1].islower()]
    assert rows == ["editing", "story"]


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["identical"] * 3, "yes. All 3 texts are token for token"),
        (["identical", "tie"], "yes. 1 of 2 texts are token for token"),
        (["identical", "tie", "violation"], "NO. 1 of 3 texts differ"),
        (["unchecked"], "not compared"),
        (["lossy", "lossy"], "no, by design"),
    ],
)
def test_verdict_is_told_in_words(verdicts, words):
    outcomes = [make_outcome(str(i), lossless=v) for i, v in enumerate(verdicts)]
    assert f"Lossless        {words}" in _render(outcomes)


def test_every_divergence_is_told_with_its_margin_and_noise():
    tie = Divergence(index=3, margin=0.0123, noise=0.05)
    outcomes = [
        make_outcome("a", lossless="tie", divergence=tie),
        make_outcome("b"),
        make_outcome("c", lossless="violation", divergence=Divergence(7, FAR, 0.05)),
    ]
    table = _render(outcomes)
    assert "violation: c, token 7: margin never, noise 0.05" in table
    assert "tie: a, token 3: margin 0.012, noise 0.05" in table
    assert table.index("violation: c") < table.index("tie: a")
    many = [make_outcome(str(i), lossless="tie", divergence=tie) for i in range(9)]
    assert _render(many).endswith("and 3 more in prompts.jsonl")
    assert "margin" not in _render([make_outcome("b")])


@pytest.mark.parametrize(
    ("both", "words"),
    [
        (0.0, "no verdict, as texts with nothing right would be within 0.1"),
        (0.5, "shown to be equal within 0.1"),
    ],
)
def test_equality_of_quality_is_told_with_the_interval_it_was_judged_by(both, words):
    outcomes = [
        replace(
            make_outcome(f"p{i}"),
            scores=(Score("rate", "mean", 1.0, 0.1, (both, 1.0), (both, 1.0)),),
        )
        for i in range(60)
    ]
    table = " ".join(_render(outcomes).split())
    assert words in table
    assert "(90% interval -0.0" in table


def test_a_speed_up_over_other_code_says_so():
    """Over ``generate`` without a cache it was 193x, and not for speculation."""
    outcomes = [make_outcome(str(i)) for i in range(6)]
    table = render(summarize(outcomes, wall_s=1.0, baseline="hf_no_cache"))
    assert "over hf_no_cache: other code, so not by speculation alone" in table
    assert "other code" not in _render(outcomes)


def test_table_ends_with_where_the_files_are(tmp_path):
    stream = io.StringIO()
    run = make_run(tmp_path)
    record([TerminalSink(stream)], run, make_outcomes())
    assert stream.getvalue().endswith(f"{run.folder}\n")


def test_a_run_without_numbers_prints_nothing(tmp_path):
    stream = io.StringIO()
    sink = TerminalSink(stream)
    with pytest.raises(RuntimeError, match="boom"):
        record([sink, _Boom()], make_run(tmp_path), make_outcomes())
    assert stream.getvalue() == ""


class _Boom(TerminalSink):
    def prompt(self, outcome):
        raise RuntimeError("boom")


def _repeated(seconds, *, agrees=True):
    repeats = tuple(Repeat(plain, 1.0, agrees) for plain in seconds)
    return replace(make_outcome(), repeats=repeats)


def test_measurements_that_disagree_are_warned_of():
    calm, noisy = _render([_repeated((2.0, 2.02))]), _render([_repeated((2.0, 2.5))])
    assert "Noise           0.7%      between 2 measurements of a prompt's" in calm
    assert "Noise           15.8%" in noisy
    assert "disturbed: is the machine busy" in noisy
    assert "disturbed" not in calm
    assert "texts differ" not in noisy
    other = _render([_repeated((2.0, 2.0), agrees=False)])
    assert "texts differ between measurements of 1 prompts" in other
