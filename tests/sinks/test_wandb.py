"""Real offline W&B runs, read back from what was written."""

import builtins
import json
import logging
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import wandb

from tests.analysis.conftest import JUDGED
from tests.outcomes import make_outcome
from tests.sinks.runs import make_outcomes, make_run, record
from treespec.errors import TreespecError
from treespec.sinks import wandb as module
from treespec.sinks.base import Picture, recording
from treespec.sinks.run_folder import LOCK, RunFolderSink, is_done
from treespec.sinks.wandb import WandbSink, flatten

NUM_STEPS = {"k1": 1, "k2": 2, "k3": 3}


@pytest.fixture
def no_credentials(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("WANDB_") and name != "WANDB_SERVICE":
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
    return [{**r.get(r["type"], {}), "type": r["type"]} for r in records]


def _of(records, kind):
    return [record for record in records if record["type"] == kind]


def _prompt_rows(records):
    items = [entry["item"] for entry in _of(records, "history")]
    return [item for item in items if "prompt_idx" in item]


def _table(run_dir, records, name):
    """Return the rows of a table, as they lie in its file."""
    key = f"tables/{name}.path"
    items = [entry["item"] for entry in _of(records, "history")]
    (path,) = [item[key] for item in items if key in item]
    table = json.loads((run_dir / "files" / path).read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def _summary(records):
    merged = {}
    for update in _of(records, "summary"):
        merged.update(update["update"])
    return merged


def test_three_jobs_of_one_process_are_three_offline_runs(tmp_path, monkeypatch):
    """Public case 41: jobs of a sweep shared one W&B run, or wrote into each other's.

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
        history = _prompt_rows(records)
        assert [row["prompt_idx"] for row in history] == [0, 1]
        assert [row["prompt/num_steps"] for row in history] == [num_steps] * 2
        assert [row["prompt/speedup"] for row in history] == pytest.approx([3.0, 2.0])
        assert _of(records, "exit")[0].get("exit_code", 0) == 0
        written = _summary(records)
        stored = json.loads((tmp_path / key / "summary.json").read_text())
        assert stored == summaries[key]
        assert {name: written[name] for name in flatten(stored)} == flatten(stored)


def test_a_run_has_tables_its_files_and_trees(tmp_path):
    """What is logged once per run, as it lies in the offline run."""
    run = make_run(tmp_path)
    svg = '<svg xmlns="http://www.w3.org/2000/svg"/>'
    sink = WandbSink(
        pictures=lambda _, outcomes: [Picture(o.id, svg) for o in outcomes]
    )
    outcomes = [make_outcome("<a>", accepted=(2, 0)), make_outcome("b", accepted=(1,))]
    steps = [replace(step, **JUDGED) for step in outcomes[0].speculative.steps]
    fast = replace(outcomes[0].speculative, steps=tuple(steps))
    outcomes[0] = replace(outcomes[0], speculative=fast)
    summary = record([RunFolderSink(), sink], run, outcomes)
    assert sink.failure is None

    (run_dir,) = (run.folder / "wandb").glob("offline-run-*")
    records = _inspect(run_dir)
    by_depth = _table(run_dir, records, "acceptance_by_depth")
    assert [row["depth"] for row in by_depth] == [1, 2]
    rates = [row["acceptance_rate"] for row in by_depth]
    assert rates == summary["acceptance_rate_by_depth"]
    ends = [[row["low"], row["high"]] for row in by_depth]
    assert ends == summary["acceptance_rate_by_depth_ci95"]
    by_rank = _table(run_dir, records, "acceptance_by_rank")
    counts = [(r["rank"], r["num_accepted"], r["num_judged"]) for r in by_rank]
    assert counts == [(0, 2, 4), (1, 0, 2)]
    prompts = _table(run_dir, records, "prompts")
    assert [row["id"] for row in prompts] == ["<a>", "b"]
    assert prompts[0]["speedup"] == pytest.approx(2.0)
    assert prompts[0]["text"] == "words"

    (files,) = [a for a in _of(records, "artifact") if a["name"] == "run-k1"]
    kept = {e["path"]: Path(e["local_path"]) for e in files["manifest"]["contents"]}
    files = [path for path in run.folder.iterdir() if path.is_file()]
    written = {path.name: path for path in files if path.name != LOCK}
    assert kept == written
    assert "DONE" in kept
    copies = [
        e["local_path"]
        for a in _of(records, "artifact")
        for e in a["manifest"]["contents"]
    ]
    assert all(Path(copy).is_relative_to(run.folder) for copy in copies)

    pages = [
        page["path"]
        for entry in _of(records, "history")
        for page in entry["item"].get("trees.html", [])
    ]
    assert len(pages) == 2
    first = (run_dir / "files" / pages[0]).read_text()
    assert first.count("&lt;a&gt;") == 2
    assert "<a>" not in first
    assert svg in first


def test_auto_is_online_only_if_there_is_a_key_and_someone_answers(
    monkeypatch, caplog, no_credentials
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        wandb.teardown()  # the environment is read once per process
        assert not module._can_be_online()
        assert "there is no API key" in caplog.text
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
        assert module._can_be_online()
    caplog.clear()
    assert not module._can_be_online()
    assert "127.0.0.1 does not answer" in caplog.text
    wandb.teardown()


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
