"""Real offline W&B runs, read back from what was written."""

import builtins
import json
import logging
import os
import socket
import subprocess
import sys

import pytest
import wandb

from tests.outcomes import make_outcome
from tests.sinks.runs import make_outcomes, make_run, record
from treespec.errors import TreespecError
from treespec.sinks.base import recording
from treespec.sinks.run_folder import RunFolderSink, is_done
from treespec.sinks.wandb import WandbSink, flatten

NUM_STEPS = {"k1": 1, "k2": 2, "k3": 3}


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def _inspect(run_dir):
    output = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run_dir)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    records = [json.loads(line) for line in output.splitlines()]
    return [{"type": r["type"], **r.get(r["type"], {})} for r in records]


def _of(records, kind):
    return [record for record in records if record["type"] == kind]


def _summary(records):
    merged = {}
    for update in _of(records, "summary"):
        merged.update(update["update"])
    return merged


def test_three_jobs_of_one_process_are_three_offline_runs(tmp_path, monkeypatch):
    """Jobs of a sweep have shared one W&B run, or written into each other's.

    The environment tries to merge them by id and group, and to draw them to a server
    that must never be spoken to.
    """
    wandb.teardown()  # the environment is read once per process
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        monkeypatch.setenv(
            "WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}"
        )
        monkeypatch.setenv("WANDB_RUN_ID", "one-for-all")
        monkeypatch.setenv("WANDB_RUN_GROUP", "other")
        monkeypatch.setenv("WANDB_RESUME", "must")
        summaries = {}
        for key, num_steps in NUM_STEPS.items():
            run = make_run(tmp_path, key, depth=num_steps)
            outcomes = [
                make_outcome("a", accepted=(2,) * num_steps),
                make_outcome("b", accepted=(1,) * num_steps),
            ]
            summaries[key] = record([RunFolderSink(), WandbSink()], run, outcomes)
        with pytest.raises(TimeoutError):
            server.accept()

    for key, num_steps in NUM_STEPS.items():
        (run_dir,) = (tmp_path / key / "wandb").glob("offline-run-*")
        records = _inspect(run_dir)
        (run,) = _of(records, "run")
        config = run["config"]["update"]
        assert (run["run_id"], run["run_group"]) == (key, "sweep")
        assert run["project"] == "treespec"
        assert config["depth"] == num_steps
        assert config["policy"] == {"max_depth": 3, "min_prob": 1e-05}
        assert config["_treespec"]["versions"]["torch"] == "2.13.0"
        history = [entry["item"] for entry in _of(records, "history")]
        assert [row["prompt_idx"] for row in history] == [0, 1]
        assert [row["prompt/num_steps"] for row in history] == [num_steps] * 2
        assert [row["prompt/speedup"] for row in history] == pytest.approx([3.0, 2.0])
        assert _of(records, "exit")[0].get("exit_code", 0) == 0
        written = _summary(records)
        stored = json.loads((tmp_path / key / "summary.json").read_text())
        assert stored == summaries[key]
        assert {name: written[name] for name in flatten(stored)} == flatten(stored)


def test_a_crashed_run_is_finished_as_failed(tmp_path):
    run = make_run(tmp_path)
    with pytest.raises(RuntimeError, match="boom"), recording([WandbSink()], run):
        raise RuntimeError("boom")
    (run_dir,) = (run.folder / "wandb").glob("offline-run-*")
    assert _of(_inspect(run_dir), "exit")[0]["exit_code"] == 1


def test_a_job_that_starts_over_leaves_one_wandb_run(tmp_path):
    """A killed job left its half-written run beside the finished one."""
    run = make_run(tmp_path)
    stale = run.folder / "wandb/offline-run-20200101_000000-k1"
    stale.mkdir(parents=True)
    record([WandbSink()], run, make_outcomes())
    (left,) = (run.folder / "wandb").glob("offline-run-*")
    assert left != stale


def test_a_failing_wandb_costs_one_warning_and_no_result(tmp_path, monkeypatch, caplog):
    def broken(*_, **__):
        raise wandb.errors.CommError("no\nnetwork")

    monkeypatch.setattr(wandb.Run, "log", broken)
    run = make_run(tmp_path)
    with caplog.at_level(logging.WARNING):
        record([RunFolderSink(), WandbSink()], run, make_outcomes())
    assert is_done(run.folder)
    assert wandb.run is None
    (message,) = [r.getMessage() for r in caplog.records if "W&B" in r.getMessage()]
    assert "no network" in message
    assert "\n" not in message


def test_without_wandb_everything_else_works(tmp_path, monkeypatch, caplog):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "wandb":
            raise ImportError("No module named 'wandb'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    run = make_run(tmp_path)
    record([RunFolderSink(), WandbSink()], run, make_outcomes())
    assert is_done(run.folder)
    assert "No module named 'wandb'" in caplog.text


def test_disabled_wandb_leaves_nothing(tmp_path):
    run = make_run(tmp_path)
    sink = WandbSink(mode="disabled")
    sink.check(run.folder)
    record([RunFolderSink(), sink], run, make_outcomes())
    assert not (run.folder / "wandb").exists()


@pytest.mark.usefixtures("no_credentials")
def test_online_without_a_key_is_one_line_that_names_the_way_out(tmp_path):
    with pytest.raises(TreespecError) as error:
        WandbSink(mode="online").check(tmp_path)
    assert "wandb.mode=online needs an API key" in str(error.value)
    assert "wandb.mode=offline" in str(error.value)
    assert "\n" not in str(error.value)
    WandbSink(mode="offline").check(tmp_path)


@pytest.mark.usefixtures("no_credentials")
def test_online_accepts_a_key_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    WandbSink(mode="online").check(tmp_path)


@pytest.mark.usefixtures("no_credentials")
def test_online_accepts_a_key_from_a_netrc_file(tmp_path):
    host = wandb.setup().settings.base_url.split("//")[1].split(":")[0]
    (tmp_path / "netrc").write_text(f"machine {host} login user password {'x' * 40}\n")
    WandbSink(mode="online").check(tmp_path)


def test_an_unknown_mode_is_refused():
    with pytest.raises(TreespecError, match=r"wandb\.mode must be one of .*'on'"):
        WandbSink(mode="on")


def test_nested_names_are_joined_by_dots_and_lists_stay_whole():
    assert flatten({"a": {"b": {"c": 1}}, "d": [1, None]}) == {
        "a.b.c": 1,
        "d": [1, None],
    }
