"""Both sides of a comparison by quality, and when they may be called equal."""

from dataclasses import replace

import pytest

from tests.outcomes import make_outcome
from treespec.metrics import summarize
from treespec.outcome import Score
from treespec.scores import quality
from treespec.stats import equivalence


def outcomes_of(pairs, margin=0.1, largest=1.0, pooling="mean"):
    return [
        replace(
            make_outcome(f"p{i}"),
            scores=(
                Score("rate", pooling, largest, margin, (fast, 1.0), (plain, 1.0)),
            ),
        )
        for i, (fast, plain) in enumerate(pairs)
    ]


def test_a_mean_measure_is_the_mean_of_both_sides():
    found = quality(outcomes_of([(1, 0), (0, 0), (1, 1), (1, 1), (0, 1)]))["rate"]
    assert found["speculative"] == pytest.approx(3 / 5)
    assert found["baseline"] == pytest.approx(3 / 5)
    assert found["difference"] == pytest.approx(0)
    assert found["num_prompts"] == found["num_texts"] == 5
    low, high = found["difference_ci90"]
    assert low < 0 < high


def test_equal_means_of_few_prompts_are_not_called_equivalent():
    """Five equal answers rule out no difference of a tenth."""
    found = quality(outcomes_of([(1, 1)] * 5))["rate"]
    assert found["difference"] == 0
    assert found["equivalent"] is False
    assert quality(outcomes_of([(1, 1)] * 60))["rate"]["equivalent"] is True


def test_a_difference_within_the_margin_is_shown_only_where_the_noise_allows():
    small = [(0.50 + 0.01 * (i % 3), 0.50) for i in range(30)]
    assert quality(outcomes_of(small))["rate"]["equivalent"] is True
    large = [(0.70 + 0.01 * (i % 3), 0.50) for i in range(30)]
    assert quality(outcomes_of(large))["rate"]["equivalent"] is False
    wild = [((i % 2) * 1.0, ((i // 2) % 2) * 1.0) for i in range(12)]
    assert quality(outcomes_of(wild))["rate"]["equivalent"] is False


def test_fewer_than_five_prompts_say_nothing():
    found = quality(outcomes_of([(1, 0)] * 4))["rate"]
    assert found["difference"] == 1
    for key in ("difference_ci90", "equivalence_p_value", "equivalent"):
        assert found[key] is None


@pytest.mark.parametrize(("both", "verdict"), [(0.0, None), (0.1, None), (0.2, True)])
def test_sides_that_are_both_at_the_floor_are_not_called_equivalent(both, verdict):
    """BLEU of 0 on both sides, of texts that were all cut, once was."""
    found = quality(outcomes_of([(both, both)] * 60))["rate"]
    assert found["difference"] == 0
    assert found["equivalent"] is verdict


def test_turns_of_a_prompt_are_resampled_together():
    """Twelve copies of five answers once passed for sixty prompts."""
    pairs = [(1, 0), (0, 0), (1, 1), (0, 1), (1, 1)]
    once = outcomes_of(pairs)
    often = [
        replace(o, id=o.id if turn == 1 else f"{o.id}/{turn}", turn=turn)
        for o in once
        for turn in range(1, 13)
    ]
    few, many = quality(once)["rate"], quality(often)["rate"]
    assert many["num_texts"] == 60
    for key in ("num_prompts", "difference_ci90", "equivalence_p_value"):
        assert many[key] == pytest.approx(few[key])


def test_the_two_one_sided_tests_are_those_of_the_differences():
    """Pseudo-values of a mean over texts, one each, are the differences themselves."""

    pairs = [(0.1 * (i % 4), 0.1 * (i % 3)) for i in range(20)]
    found = quality(outcomes_of(pairs))["rate"]
    expected = equivalence([a - b for a, b in pairs], 0.1, 1.0)
    assert found["equivalence_p_value"] == pytest.approx(expected.p_value)


def test_corpus_bleu_of_equal_texts_is_no_difference():
    parts = (9.0, 8.0, 7.0, 6.0, 10.0, 9.0, 8.0, 7.0, 10.0, 10.0)
    score = Score("bleu", "bleu", 100.0, 1.0, parts, parts)
    outcomes = [replace(make_outcome(f"p{i}"), scores=(score,)) for i in range(200)]
    found = quality(outcomes)["bleu"]
    assert found["speculative"] == found["baseline"] > 80
    assert found["difference"] == 0


def test_measures_stand_in_the_summary_of_all_and_of_each_category():
    outcomes = outcomes_of([(1, 0)] * 6)
    outcomes[0] = replace(outcomes[0], category="math")
    summary = summarize(outcomes, 1.0)
    assert summary["quality"]["rate"]["num_prompts"] == 6
    assert summary["categories"]["math"]["quality"]["rate"]["num_prompts"] == 1
    assert summarize([make_outcome()], 1.0)["quality"] == {}


def test_cut_texts_are_counted():
    (outcome,) = outcomes_of([(1, 0)])
    ended = replace(outcome.baseline, finish_reason="eos")
    found = quality([replace(outcome, baseline=ended)])["rate"]
    assert found["num_cut"] == 1
