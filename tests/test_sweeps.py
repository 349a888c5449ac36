"""Sweeps that are killed, run twice at once, fail in part, and are summed up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forks import NUM_KILLS

ROOT = Path(__file__).parents[1]
NUM_JOBS = 12


@pytest.fixture(scope="module")
def forks(tiny_files, tmp_path_factory):
    """Run every sweep of ``tests/forks.py`` once, in processes of their own."""
    common = [
        *tiny_files.overrides, "controller=constant", "max_new_tokens=6",
        "num_prompts=2", "warmup=false", f"pair.draft.path={tiny_files.draft}",
        "drafter=prompt_lookup", "policy=chain",
    ]  # fmt: skip
    root = tmp_path_factory.mktemp("forks")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.forks", json.dumps(common), str(root)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "TREESPEC_CACHE": str(root / "cache")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_sweep_that_is_killed_again_and_again_ends_as_if_nothing_had_been(forks):
    undisturbed, killed = forks["undisturbed"], forks["killed"]
    assert undisturbed["code"] == 0
    assert len(undisturbed["texts"]) == NUM_JOBS
    assert killed["signals"] == [-9] * NUM_KILLS
    assert killed["code"] == 0, killed["output"]
    assert killed["texts"] == undisturbed["texts"]
    assert killed["decoded"] == [1] * NUM_JOBS
    assert killed["left"] == []
    assert f"{NUM_JOBS} jobs: {NUM_JOBS} done, 0 failed, 0 missing" in killed["output"]


def test_two_sweeps_at_once_in_one_folder_share_its_jobs(forks):
    twice = forks["twice"]
    assert set(twice["codes"]) <= {0, 4}
    assert twice["again"] == 0
    assert twice["texts"] == forks["undisturbed"]["texts"]
    assert twice["decoded"] == [1] * NUM_JOBS
    assert "Traceback" not in twice["output"]


def test_a_sweep_decodes_what_its_jobs_decode_in_processes_of_their_own(forks):
    """Weights stay in memory between jobs; nothing else may."""
    apart = forks["apart"]
    assert apart["codes"] == [0] * 7
    assert len(apart["together"]) == 6
    assert apart["together"] == apart["alone"]
    assert apart["output"].count("loading the target model") == 2
    assert apart["output"].count("keeping the target model") == 4
