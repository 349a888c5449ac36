"""W&B from the files alone is W&B as it was told live."""

import json
import subprocess
import sys

import pytest

from tests.analysis.conftest import full_outcomes, write_failed, write_run
from tests.sinks.runs import make_run, record
from treespec.analysis.pictures import TreePictures
from treespec.errors import TreespecError
from treespec.sinks.run_folder import RunFolderSink
from treespec.sinks.wandb import WandbSink
from treespec.upload import upload

# What two W&B runs never share: when they were written, and who wrote them.
_OF_THE_MOMENT = {
    "_runtime",
    "_timestamp",
    "_wandb",
    "client_id",
    "sequence_client_id",
    "start_time",
    "uuid",
}


def told(folder):
    """What W&B holds of a run, without what is of the moment."""
    (run_dir,) = (folder / "wandb").glob("offline-run-*")
    output = subprocess.run(
        [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run_dir)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    records = [json.loads(line) for line in output.splitlines()]
    wanted = ("run", "history", "summary", "metric", "artifact", "exit")
    found = [_settled(r[kind]) for r in records for kind in wanted if kind in r]
    # W&B keeps a second copy of every table, under a name that it draws.
    return [record for record in found if record.get("type") != "run_table"]


def _settled(value):
    if isinstance(value, dict):
        return {
            key: _settled(part)
            for key, part in value.items()
            if key not in _OF_THE_MOMENT and not key.endswith("artifact_path")
        }
    return [_settled(item) for item in value] if isinstance(value, list) else value


def test_uploading_from_disk_writes_what_the_live_sink_wrote(tmp_path):
    sink = {"wandb": {"pictures": {"max_prompts": 2}}}
    run = make_run(tmp_path, "k1", sink=sink)
    sinks = [RunFolderSink(), WandbSink(project="mine", pictures=TreePictures(2))]
    record(sinks, run, full_outcomes())
    live = told(run.folder)
    assert str(upload([str(run.folder), "project=mine"])) == (
        "1 of 1 runs written to W&B"
    )
    assert told(run.folder) == live
    assert any(item.get("run_group") == "sweep" for item in live)


def test_unfinished_runs_of_a_sweep_are_named_and_the_others_written(tmp_path):
    folder = write_run(tmp_path, "k1", full_outcomes()[:1])
    write_failed(tmp_path)
    done = upload([str(tmp_path)])
    assert done.written == (folder,)
    assert "failed: the run is not finished" in str(done)
    assert str(done).endswith("1 of 2 runs written to W&B")
    assert list((folder / "wandb").glob("offline-run-*-k1"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "upload: give one folder, got 0"),
        (["a", "b"], "upload: give one folder, got 2"),
        (["."], "has no run in it"),
        ([".", "mood=x"], "unknown key of upload 'mood'. Did you mean 'mode'"),
        ([".", "mode=disabled"], "mode must be offline, online or auto"),
    ],
)
def test_impossible_uploads_are_refused_in_one_line(
    arguments, told, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TreespecError, match=told.replace("(", r"\(")) as error:
        upload(arguments)
    assert "\n" not in str(error.value)


def test_a_wandb_that_fails_is_an_error_here_and_no_warning_only(tmp_path, monkeypatch):
    folder = write_run(tmp_path, "k1", full_outcomes()[:1])
    monkeypatch.setattr("wandb.Run.log", _broken)
    done = upload([str(folder)])
    assert not done.written
    assert "W&B did not take it: no network" in done.failed[folder]


def _broken(*_, **__):
    raise OSError("no network")
