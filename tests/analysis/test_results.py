"""Choosing runs, and calling them by what they do not share."""

import pytest

from tests.analysis.conftest import full_outcomes, write_run
from treespec.analysis import load_results
from treespec.errors import TreespecError


def test_labels_say_what_differs_and_nothing_else(results):
    done = results.only("k1", "k2")
    assert done.labels() == {
        "k1": "max_depth 2, max_nodes 2, least 0.2",
        "k2": "max_depth 4, max_nodes 4, least 0.4",
    }
    assert results.only("k2").labels() == {"k2": "Chain"}


def test_keys_that_only_some_runs_have_are_named_only_if_needed(tmp_path):
    for key, option in (("Chain", "min_confidence"), ("BestFirst", "beam")):
        policy = {"_target_": f"treespec.policies.{key}", option: 1}
        write_run(tmp_path, key, full_outcomes(), policy=policy)
    labels = load_results(tmp_path).labels()
    assert labels == {"BestFirst": "BestFirst", "Chain": "Chain"}


def test_runs_that_differ_in_nothing_keep_their_names(results):
    names = results.only("failed", "killed").labels()
    assert names == {"failed": "failed", "killed": "killed"}


def test_runs_are_chosen_by_name_or_by_what_they_are(results):
    deep = results.where(lambda runs: runs["max_depth"] > 3)
    assert list(deep.runs["run"]) == ["k2"]
    for table in ("prompts", "steps", "nodes", "settings"):
        assert set(getattr(deep, table)["run"]) == {"k2"}
    with pytest.raises(TreespecError, match="unknown run 'k3'"):
        results.only("k3", "k2")


def test_varied_settings_are_columns(results):
    varied = results.only("k1", "k2").varied()
    assert varied.loc["k1", "policy.least"] == "0.2"
    assert "seed" not in varied
