"""The studies of drafts, trees, controllers and sampling, and their numbers."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.experiments.conftest import FOLDER
from tests.models.folder import save_folder
from tests.outcomes import make_result, make_step
from tests.tiny import perturbed, tiny_model
from treespec.outcome import PromptOutcome
from treespec.types import GenerationResult

NUM_LAYERS = 28
"""Of the target that the study of drafts is written for."""


def report(tmp_path: Path, name: str) -> str:
    told = (tmp_path / f"outputs/studies/{name}/{name}.md").read_text()
    assert "nan" not in told.lower().split()
    assert str(tmp_path) not in told
    return told


def figures(tmp_path: Path, name: str) -> set[str]:
    found = (tmp_path / f"outputs/studies/{name}").glob("*.svg")
    return {path.stem.removeprefix(f"{name}_") for path in found}


def test_trees_and_chains_are_compared_at_equal_nodes_and_time(study, tmp_path):
    ended = study("tree_vs_chain", "--fast")
    assert (ended.code, ended.errors) == (0, [])
    told = report(tmp_path, "tree_vs_chain")
    assert "tree over chain" in told
    assert "At equal nodes: with 2 nodes a tree commits" in told
    assert "At equal time, tree to chain" in told
    assert "| chain_8 |" in told.partition("Acceptance by depth")[2]
    assert figures(tmp_path, "tree_vs_chain") == {"speed", "depth"}


def test_drafts_are_compared_by_acceptance_and_cost(study, tmp_path):
    target = tiny_model("llama", seed=1, num_layers=NUM_LAYERS)
    deep = save_folder(tmp_path / "deep", target)
    draft = save_folder(tmp_path / "deep_draft", perturbed(target, 0.1, seed=2))
    models = (f"pair.target.path={deep}", f"pair.draft.path={draft}")
    ended = study("draft_choice", "--fast", *models)
    assert (ended.code, ended.errors) == (0, [])
    told = report(tmp_path, "draft_choice")
    assert "On the Pareto front, cheapest first: " in told
    assert "| lower 7 layers |" in told
    assert re.search(r"Quantization (moved|is not shown to move) acceptance \(", told)
    assert re.search(r"pays|does not pay|is not shown to pay", told)
    assert figures(tmp_path, "draft_choice") == {"front"}


def test_a_draft_that_cannot_be_had_is_told_and_the_others_are_compared(
    study, tmp_path
):
    ended = study("draft_choice", "--fast")  # a target of four layers has no seventh
    assert ended.code == 2
    told = report(tmp_path, "draft_choice")
    assert "- `exit_7`: " in told
    assert "without exit_7, which failed" in told
    assert "| prompt lookup |" in told


def test_controllers_are_compared_with_the_best_constant(study, tmp_path):
    ended = study("adaptive_gamma", "--fast", "num_prompts=2", "max_new_tokens=40")
    assert (ended.code, ended.errors) == (0, [])
    told = report(tmp_path, "adaptive_gamma")
    assert "Best constant: constant_" in told
    assert re.search(r"The texts have \d blocks of 16 tokens, of which \d", told)
    assert "| planner |" in told
    assert figures(tmp_path, "adaptive_gamma") == {"depth", "regret"}


def test_acceptance_is_told_by_temperature_and_the_law_is_checked(study, tmp_path):
    small = "settings.law_check.num_texts=40"
    ended = study("sampling_modes", "--fast", small)
    assert (ended.code, ended.errors) == (0, [])
    told = report(tmp_path, "sampling_modes")
    assert "speculative sampling, chain: " in told
    assert "With top-p: " in told
    assert "RejectionWithoutReplacement lossless" in told
    assert "speculative_1 fits (p = " in told
    assert "every check of the law passed" in told
    assert figures(tmp_path, "sampling_modes") == {"acceptance"}


def test_predictions_are_held_against_what_was_measured(study, tmp_path):
    ended = study("predictability", "--fast")
    assert (ended.code, ended.errors) == (0, [])
    told = report(tmp_path, "predictability")
    assert "For prompt_lookup it predicts " in told
    assert "For draft_model it predicts " in told
    assert "a prompt's prediction is typically off by" in told
    assert "too few prompts for a correlation" in told
    assert figures(tmp_path, "predictability") == {"prediction", "entropy"}


def run_of(*speeds: float) -> SimpleNamespace:
    """A run whose prompts took ten seconds plainly, and less or more with drafts."""
    outcomes = [
        PromptOutcome(
            id=f"p{place}",
            category="any",
            speculative=_ten_steps(1 / speed),
            baseline=_ten_steps(1.0),
            lossless="identical",
            divergence=None,
            quality=None,
        )
        for place, speed in enumerate(speeds)
    ]
    return SimpleNamespace(outcomes=outcomes)


def _ten_steps(step_s: float) -> GenerationResult:
    return make_result(
        [make_step(0, (1,), index, step_s=step_s) for index in range(10)]
    )


def test_speedups_are_compared_prompt_by_prompt(module):
    paired = module("paired")
    slow, fast = run_of(1, 1.5, 2, 3, 0.8), run_of(1.2, 1.8, 2.4, 3.6, 0.96)
    assert paired.speedup_over(fast, slow).value == pytest.approx(1.2)
    ratio = paired.speedup_over(fast, slow)
    assert (ratio.low, ratio.high) == pytest.approx((1.2, 1.2))
    alone = paired.speedup(fast)
    assert alone.low < 1.2 < alone.value < alone.high


def test_of_few_prompts_there_is_no_interval(module):
    few = module("paired").speedup(run_of(1, 2))
    assert few.value == pytest.approx(4 / 3)
    assert few.told("x") == "1.33x (no interval)"
    assert str(module("paired").UNKNOWN) == "unknown"


def test_a_correlation_has_its_sign_and_its_interval(module):
    correlation = module("paired").correlation
    x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    falling = correlation(x, [6.1, 5.2, 3.9, 3.1, 2.0, 0.8])
    assert falling.value < -0.99
    assert falling.high < -0.9
    assert correlation(x, [1.0, 3.0, 2.0, 2.0, 3.0, 1.0]).low < 0
    assert math.isnan(correlation(x, [1.0] * 6).value)
    assert math.isnan(correlation(x[:3], x[:3]).value)


def test_what_is_beaten_in_both_is_not_on_the_front(module):
    on_front = module("draft_choice").on_front
    rates = np.array([0.9, 0.5, 0.4, 0.5, np.nan])
    costs = np.array([0.3, 0.0001, 0.0, 0.2, 0.0])
    # The second and third cost as good as nothing, and the second is more often right.
    assert on_front(rates, costs).tolist() == [True, True, False, False, False]


def test_chains_in_the_time_of_a_tree_lie_on_the_line_between_them(module):
    chain_tokens = module("tree_vs_chain")._chain_tokens
    # Committed, steps, cost: a tree, then chains of cost 2 and 4.
    sums = np.array([9.0, 3, 9, 4, 2, 4, 3, 1, 4])
    assert chain_tokens(sums).item() == pytest.approx(2.5)
    cheap = np.array([9.0, 3, 4.5, 4, 2, 4, 3, 1, 4])
    assert chain_tokens(np.stack([sums, cheap]))[:, 0] == pytest.approx([2.5, 1.5])


def test_prompts_of_the_mixed_stream_are_three_tasks_in_one():
    lines = (FOLDER / "adaptive_gamma.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) >= 3
    assert all("\n2. " in row["turns"][0] for row in rows)
