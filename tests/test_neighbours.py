"""Jobs learn of each other, of all that there were, and of no one else."""

import subprocess
import sys

import pytest

from treespec.neighbours import beside
from treespec.untimed import with_neighbours, without_speeds


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_job_alone_has_nobody_beside_it_and_leaves_nothing(cache):
    with beside(["cpu"]) as job:
        assert job.count() == 0
    assert list(cache.rglob("*.job")) == []


def test_both_of_two_know_of_each_other_also_after_one_has_gone():
    with beside(["cpu"]) as first:
        with beside(["cpu"]) as second:
            assert (first.count(), second.count()) == (1, 1)
        assert first.count() == 1
        with beside(["cpu"]) as third:
            assert third.count() == 1
        assert first.count() == 2


def test_jobs_on_other_devices_are_not_beside_it():
    with beside(["cuda a"]) as first, beside(["cuda b"]) as second:
        assert (first.count(), second.count()) == (0, 0)
        with beside(["cuda b", "cuda c"]) as third:
            assert (first.count(), second.count(), third.count()) == (0, 1, 1)


def test_a_job_that_was_killed_is_not_there_any_more(cache):
    """Its file stays; its lock went with it."""
    script = (
        "import os, time\nfrom treespec.neighbours import beside\n"
        "with beside(['cpu']):\n    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -9
    assert len(list(cache.rglob("*.job"))) == 1
    with beside(["cpu"]) as job:
        assert job.count() == 0
        assert len(list(cache.rglob("*.job"))) == 1


def test_where_nothing_can_be_written_nothing_is_known(cache):
    cache.write_text("a file, where the folder should be")
    with beside(["cpu"]) as job:
        assert job.count() is None


def test_a_category_may_be_called_like_a_speed():
    group = {"speedup": 2.0, "acceptance_rate": 0.5, "latency_ms": {"p50": 1.0}}
    summary = {**group, "categories": {"speedup": group}, "forecast": {}}
    kept = with_neighbours(summary, 2)
    none = {"speedup": None, "acceptance_rate": 0.5, "latency_ms": {"p50": None}}
    assert kept == {
        **none,
        "categories": {"speedup": none},
        "forecast": {},
        "num_jobs_beside": 2,
    }
    assert with_neighbours(summary, 0) == {**summary, "num_jobs_beside": 0}
    assert without_speeds({}) == {}
