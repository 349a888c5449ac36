"""Texts decoded again without their model are decoded in the very same steps."""

import pytest

from treespec.analysis import load_results, plots, replay
from treespec.controllers import Constant
from treespec.drafters import PromptLookup, TokenRecycling
from treespec.errors import TreespecError
from treespec.policies import BestFirst, Chain

SAME = ["num_nodes", "num_accepted", "num_committed", "depth", "next_kind"]


@pytest.fixture(scope="module")
def budget():
    return Constant(max_depth=3, max_width=2, max_nodes=4)


@pytest.mark.parametrize("policy", [Chain(), BestFirst()], ids=["chain", "tree"])
def test_a_replay_takes_the_steps_of_the_model(command, tmp_path, policy, budget):
    option = "chain" if isinstance(policy, Chain) else "best_first"
    sizes = [f"controller.max_{n}={getattr(budget, f'max_{n}')}" for n in
             ("depth", "width", "nodes")]  # fmt: skip
    ended = command(f"policy={option}", "max_new_tokens=24", *sizes)
    assert ended.code == 0, ended.err
    measured = load_results(tmp_path / "outputs")
    replayed = replay(measured, PromptLookup(), policy, budget)
    steps = measured.steps[measured.steps["mode"] == "speculative"]
    assert steps["num_accepted"].sum() > 0
    for column in SAME:
        assert list(replayed.steps[column]) == list(steps[column]), column
    assert replayed.steps["step_s"].isna().all()
    numbers = ["mean_acceptance_length", "acceptance_rate", "mean_nodes"]
    ours, theirs = (found.runs.iloc[0][numbers] for found in (replayed, measured))
    assert list(ours) == pytest.approx(list(theirs))
    assert not plots.acceptance_by_depth(replayed).is_empty


def test_a_drafter_that_asks_the_target_is_refused(one, budget):
    with pytest.raises(TreespecError, match="TokenRecycling asks a model"):
        replay(one, TokenRecycling(), Chain(), budget)


def test_a_run_without_texts_is_refused(odd_results, budget):
    with pytest.raises(TreespecError, match="has no texts"):
        replay(odd_results["empty"], PromptLookup(), Chain(), budget)
