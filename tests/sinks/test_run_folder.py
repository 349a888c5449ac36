"""What is written is what is read, and nothing half-written is ever believed."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.outcomes import make_outcome, make_result
from tests.sinks.runs import make_outcomes, make_run, record
from treespec.errors import NumericalError, TreespecError
from treespec.metrics import summarize
from treespec.sinks import rows, run_folder
from treespec.sinks.base import RunStatus, recording
from treespec.sinks.reader import read_run, run_folders
from treespec.sinks.run_folder import (
    RunBusyError,
    RunDoneError,
    RunFolderSink,
    is_busy,
    is_done,
)
from treespec.types import NodeTrace, StepRecord


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "outputs" / "sweep")


@pytest.fixture
def finished(run):
    record([RunFolderSink()], run, make_outcomes())
    return run.folder


def test_a_run_read_back_equals_the_records_that_were_written(run, finished):
    read = read_run(finished)
    assert list(read.outcomes) == make_outcomes()
    assert read.config == run.config
    assert read.environment == run.environment
    assert read.status["status"] == "done"
    assert read.summary == summarize(read.outcomes, wall_s=1.5)


def test_forecasts_and_judged_nodes_are_summed_up_alike_when_read_back(run):
    """Floats from parquet and the first records give one summary, not about one."""
    outcome = make_outcome(accepted=(2, 1, 0))
    planned = [
        replace(
            step,
            judged_sources=("lookup", "draft"),
            judged_ranks=(0, 1),
            judged_depths=(1, 1),
            judged_probs=(0.1 + 0.2 * place, 1 / 3),
            judged_accepted=(place > 0, False),
            expected_accepted=1 / 3 + place,
            expected_s=0.1 / (place + 1),
            reason="off: too slow" if place else "lookup: a match",
        )
        for place, step in enumerate(outcome.speculative.steps)
    ]
    planned[1] = replace(planned[1], expected_accepted=None, expected_s=None)
    outcome = replace(outcome, speculative=make_result(planned))
    written = record([RunFolderSink()], run, [outcome, make_outcome("plain")])
    assert read_run(run.folder).summary == written
    assert written["forecast"]["num_forecasts"] == 2
    assert written["expected_calibration_error"] > 0
    assert set(written["reliability"]) == {"draft", "lookup"}


def test_a_run_leaves_exactly_the_promised_files(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        ".lock",
        "DONE",
        "config.yaml",
        "env.json",
        "nodes.parquet",
        "prompts.jsonl",
        "status.json",
        "steps.parquet",
        "summary.json",
    ]


def test_an_untraced_run_has_no_nodes_file(run):
    record([RunFolderSink()], run, [make_outcome()])
    assert not (run.folder / "nodes.parquet").exists()
    assert len(read_run(run.folder).outcomes) == 1


def test_columns_are_the_fields_of_the_records():
    owner = ["prompt_idx", "id", "mode"]
    assert rows.STEP_SCHEMA.names == owner + [f.name for f in fields(StepRecord)]
    assert rows.NODE_SCHEMA.names == owner + [f.name for f in fields(NodeTrace)]


def test_the_saved_configuration_alone_repeats_the_run_from_anywhere(
    run, finished, tmp_path, monkeypatch
):
    """Seeds and settings have gone missing from records, so a result stood alone."""
    monkeypatch.chdir(tmp_path)
    assert yaml.safe_load((finished / "config.yaml").read_text()) == run.config
    environment = json.loads((finished / "env.json").read_text())
    assert environment["git"] == {"commit": "abc", "dirty": False}
    assert environment["dtype"] == "float32"
    result = json.loads((finished / "prompts.jsonl").read_text().splitlines()[0])
    assert result["speculative"]["seed"] == 0
    assert result["speculative"]["tokens"] == list(range(7))


def test_every_prompt_is_on_disk_as_soon_as_it_ended(run):
    sink = RunFolderSink()
    sink.open(run)
    for number, outcome in enumerate(make_outcomes(), start=1):
        sink.prompt(outcome)
        lines = (run.folder / "prompts.jsonl").read_text().splitlines()
        assert len(lines) == number
        assert json.loads(lines[-1])["id"] == outcome.id
    assert not is_done(run.folder)
    sink.close(None, RunStatus("failed"))


def test_a_killed_run_is_reported_and_never_read(run):
    """Public case 37: killed in the middle of a line; nothing gets to clean up."""
    script = """
import os, sys
from pathlib import Path
from tests.sinks.runs import make_outcomes, make_run
from treespec.sinks.run_folder import RunFolderSink
sink = RunFolderSink()
sink.open(make_run(Path(sys.argv[1])))
sink.prompt(make_outcomes()[0])
sink._prompts.write('{"prompt_idx": 1, "id": "b", "ca')
sink._prompts.flush()
os.kill(os.getpid(), 9)
"""
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", script, str(run.folder.parent)], cwd=root, check=False
    )
    assert killed.returncode == -9
    assert not is_done(run.folder)
    with pytest.raises(TreespecError) as error:
        read_run(run.folder)
    assert "'running', 1 complete prompts and a torn line 2" in str(error.value)

    record([RunFolderSink()], run, make_outcomes())
    assert list(read_run(run.folder).outcomes) == make_outcomes()
    assert not list(run.folder.glob("*.partial"))


def test_a_torn_last_line_of_a_finished_run_is_an_error(finished):
    path = finished / "prompts.jsonl"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(TreespecError, match="line 4: not JSON"):
        read_run(finished)


def _edit_line(folder, change):
    path = folder / "prompts.jsonl"
    first, *rest = path.read_text().splitlines()
    row = json.loads(first)
    change(row)
    path.write_text("\n".join([json.dumps(row), *rest]) + "\n")


def _rename(row, old, new):
    row[new] = row.pop(old)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda row: _rename(row, "id", "id:"), "line 1: unknown key 'id:'"),
        (lambda row: row.pop("category"), "line 1: missing key 'category'"),
        (lambda row: row["baseline"].pop("decode_s"), "missing key 'decode_s'"),
        (lambda row: row["speculative"].update(mat=1), "unknown key 'mat'"),
        (lambda row: row["speculative"]["sums"].update(num_nodes=1), "steps.parquet"),
        (lambda row: row.update(prompt_idx=3), "prompt_idx 0"),
    ],
)
def test_unknown_missing_or_contradicting_keys_fail_loudly(finished, change, complaint):
    """A stray colon in a key once made a reader silently find nothing."""
    _edit_line(finished, change)
    with pytest.raises(TreespecError, match=complaint) as error:
        read_run(finished)
    assert "prompts.jsonl" in str(error.value)


def test_a_summary_that_the_records_do_not_give_is_refused(finished):
    path = finished / "summary.json"
    summary = json.loads(path.read_text())
    summary["categories"]["qa"]["time_share"]["draft"] += 1e-6
    path.write_text(json.dumps(summary))
    with pytest.raises(TreespecError, match=r"categories\.qa\.time_share\.draft"):
        read_run(finished)


@pytest.mark.parametrize("name", ["mean_acceptance_length", "wall_s"])
def test_a_summary_with_a_key_less_is_refused(finished, name):
    path = finished / "summary.json"
    summary = json.loads(path.read_text())
    del summary[name]
    path.write_text(json.dumps(summary))
    with pytest.raises(TreespecError, match=name):
        read_run(finished)


def test_a_steps_file_with_another_column_is_refused(finished):
    path = finished / "steps.parquet"
    table = pq.read_table(path)
    names = [
        "accept_lengths:" if n == "num_accepted" else n for n in table.column_names
    ]
    pq.write_table(table.rename_columns(names), path)
    with pytest.raises(TreespecError, match="unknown key 'accept_lengths:'"):
        read_run(finished)


@pytest.mark.parametrize(
    "name", ["steps.parquet", "summary.json", "env.json", "config.yaml"]
)
def test_a_missing_file_is_named(finished, name):
    (finished / name).unlink()
    with pytest.raises(TreespecError, match=name):
        read_run(finished)


def test_a_half_written_steps_file_is_refused(finished):
    path = finished / "steps.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(TreespecError, match=r"steps\.parquet: cannot be read"):
        read_run(finished)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(TreespecError, match="not a run folder"):
        read_run(tmp_path)


def _break_after_one_prompt(run, error):
    with recording([RunFolderSink()], run) as recorded:
        recorded.prompt(make_outcomes()[0])
        raise error


def test_a_crash_leaves_its_traceback_and_no_done(run):
    with pytest.raises(RuntimeError, match="out of memory"):
        _break_after_one_prompt(run, RuntimeError("out of memory"))
    status = json.loads((run.folder / "status.json").read_text())
    assert status["status"] == "failed"
    assert status["error"] == "RuntimeError: out of memory"
    assert "_break_after_one_prompt" in status["traceback"]
    assert status["num_prompts"] == 1
    assert not is_done(run.folder)
    assert pq.read_table(run.folder / "steps.parquet").num_rows == 9


def test_a_number_that_is_none_is_named(run):
    """A clock that told NaN ended in a message of the JSON library."""
    outcome = make_outcomes()[0]
    broken = replace(
        outcome, speculative=replace(outcome.speculative, prefill_s=float("nan"))
    )
    with pytest.raises(NumericalError, match=r"^speculative\.prefill_s is nan"):
        record([RunFolderSink()], run, [broken])
    status = json.loads((run.folder / "status.json").read_text())
    assert status["status"] == "failed"
    assert "speculative.prefill_s is nan" in status["error"]


def test_an_interrupted_run_says_so(run):
    with pytest.raises(KeyboardInterrupt):
        _break_after_one_prompt(run, KeyboardInterrupt())
    assert json.loads((run.folder / "status.json").read_text())["status"] == (
        "interrupted"
    )
    assert not is_done(run.folder)


def _summarize_and_fail(run):
    with recording([RunFolderSink()], run) as recorded:
        recorded.summary = summarize(make_outcomes(), wall_s=1.0)
        raise TreespecError("violation")


def test_a_failure_after_the_summary_keeps_the_summary_but_is_not_done(run):
    """A violation of losslessness fails the run, and its numbers are the evidence."""
    with pytest.raises(TreespecError, match="violation"):
        _summarize_and_fail(run)
    assert (run.folder / "summary.json").exists()
    assert not is_done(run.folder)


def test_running_again_never_shows_the_old_results_as_new(run, finished):
    sink = RunFolderSink()
    sink.open(run)
    assert not is_done(finished)
    assert not (finished / "summary.json").exists()
    assert (finished / "prompts.jsonl").read_text() == ""
    sink.close(None, RunStatus("failed"))


def test_a_full_disk_is_one_line_that_names_output_root(run, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = RunFolderSink()
    sink.open(run)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(TreespecError) as error:
            sink.prompt(make_outcomes()[0])
    sink.close(None, RunStatus("failed"))
    assert "output_root: cannot write" in str(error.value)
    assert "No space left on device" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_below_a_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TreespecError, match=r"output_root.*is not a folder"):
        RunFolderSink().check(tmp_path / "file" / "sweep" / "k1")
    with pytest.raises(TreespecError, match="output_root"):
        RunFolderSink().open(make_run(tmp_path / "file"))


def test_checking_a_folder_that_can_be_made_leaves_nothing_behind(tmp_path):
    RunFolderSink().check(tmp_path / "new" / "sweep" / "k1")
    assert list(tmp_path.iterdir()) == []


def test_two_processes_never_write_one_run(run):
    """Two equal jobs at once once left a DONE beside the files of only one of them."""
    first, second = RunFolderSink(), RunFolderSink()
    first.open(run)
    with pytest.raises(TreespecError, match="another process is writing this very run"):
        second.open(run)
    outcomes = make_outcomes()
    for outcome in outcomes:
        first.prompt(outcome)
    first.close(summarize(outcomes, wall_s=1.5), RunStatus("done"))
    assert list(read_run(run.folder).outcomes) == outcomes
    second.open(run)  # the claim ended with the first
    second.close(None, RunStatus("interrupted"))


def test_a_whole_file_is_never_seen_half_written(run, finished, monkeypatch):
    """Public case 37: a crash in mid-write leaves what was there before."""
    before = (finished / "summary.json").read_text()

    def crash(file):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "_sync", crash)
    with pytest.raises(KeyboardInterrupt):
        run_folder._write(finished / "summary.json", "{")
    assert (finished / "summary.json").read_text() == before


def _full(name, monkeypatch):
    """Let the disk be full for one file, whatever writes it."""
    real = os.fsync

    def fsync(file):
        if name in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for open files in /proc")
@pytest.mark.parametrize(
    "name",
    [
        "config.yaml",
        "env.json",
        "prompts.jsonl",
        "steps.parquet",
        "nodes.parquet",
        "summary.json",
        "status.json",
        "DONE",
    ],
)
def test_a_disk_that_is_full_for_any_file_is_one_line_and_no_done(
    run, monkeypatch, name
):
    """The claim to the folder ends too: with room again the run is done at once."""
    with monkeypatch.context() as patched:
        _full(name, patched)
        with pytest.raises(TreespecError) as error:
            record([RunFolderSink()], run, make_outcomes())
    assert "output_root: cannot write" in str(error.value)
    assert "\n" not in str(error.value)
    assert not is_done(run.folder)
    record([RunFolderSink()], run, make_outcomes())
    assert list(read_run(run.folder).outcomes) == make_outcomes()


def test_a_file_that_the_system_refuses_to_let_grow_is_told_like_a_full_disk(run):
    """The real thing, with a limit on file sizes instead of a full disk."""
    script = """
import resource, sys
from pathlib import Path
from tests.sinks.runs import make_outcomes, make_run, record
from treespec.errors import TreespecError
from treespec.sinks.run_folder import RunFolderSink
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in map(int, sys.argv[2:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        record([RunFolderSink()], make_run(Path(sys.argv[1])), make_outcomes() * 9)
    except TreespecError as error:
        print(f"{limit} {error}")
"""
    root = Path(__file__).parents[2]
    limits = ["0", "3", "300", "3000", "9000", "20000"]
    ended = subprocess.run(
        [sys.executable, "-c", script, str(run.folder.parent), *limits],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = ended.stdout.splitlines()
    assert [line.split()[0] for line in told] == limits
    assert all("File too large" in line for line in told)
    assert ended.stderr == ""
    assert not is_done(run.folder)


def test_a_run_that_is_done_is_not_begun_again_unless_that_is_asked_for(run, finished):
    before = (finished / "status.json").read_bytes()
    with pytest.raises(RunDoneError):
        RunFolderSink(overwrite=False).open(run)
    assert (finished / "status.json").read_bytes() == before
    assert is_done(finished)


def test_a_run_is_busy_while_it_is_written_and_no_longer(run):
    sink = RunFolderSink()
    assert not is_busy(run.folder)
    sink.open(run)
    assert is_busy(run.folder)
    with pytest.raises(RunBusyError, match="another process"):
        RunFolderSink().check(run.folder)
    sink.close(None, RunStatus("failed"))
    assert not is_busy(run.folder)
    RunFolderSink().check(run.folder)


def test_a_sweep_may_be_called_wandb(tmp_path):
    """Its runs were taken for files of W&B, and not found."""
    folder = write_run_of(tmp_path / "wandb")
    assert run_folders(tmp_path) == run_folders(tmp_path / "wandb") == [folder]
    (folder / "wandb/run-1/files").mkdir(parents=True)
    (folder / "wandb/run-1/run.wandb").write_text("")
    (folder / "wandb/run-1/files/config.yaml").write_text("")
    assert run_folders(folder / "wandb") == []


def write_run_of(folder):
    run = make_run(folder)
    record([RunFolderSink()], run, make_outcomes())
    return run.folder
