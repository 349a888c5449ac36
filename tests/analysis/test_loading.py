"""One schema wherever runs come from, and nothing dropped in silence."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import wandb

from tests.analysis.conftest import full_outcomes, write_killed, write_run
from tests.sinks.runs import make_run, record
from treespec.analysis import load_results, results_of
from treespec.analysis.schema import SUMMARY_COLUMNS
from treespec.errors import TreespecError
from treespec.sinks.run_folder import RunFolderSink
from treespec.sinks.wandb import WandbSink, flatten

TABLES = ("runs", "prompts", "steps", "nodes", "settings")


@pytest.fixture(scope="module")
def with_wandb(tmp_path_factory):
    """A run that was sent to its folder and to W&B, offline."""
    run = make_run(tmp_path_factory.mktemp("wandb"), "k1", max_new_tokens=9)
    record([RunFolderSink(), WandbSink()], run, full_outcomes())
    # W&B's service writes the end of its log after finish() has returned; it ends only
    # once all is written. Under load the log was read without its last prompts.
    wandb.teardown()
    return run.folder


def test_a_folder_a_sweep_wandb_and_live_outcomes_have_one_schema(sweep, with_wandb):
    kinds = {
        "folder": load_results(with_wandb),
        "sweep": load_results(sweep),
        "above": load_results(sweep.parent),
        "wandb": load_results(with_wandb / "wandb"),
        "live": results_of(full_outcomes()),
    }
    for name, found in kinds.items():
        for table in TABLES:
            frame, other = getattr(found, table), getattr(kinds["folder"], table)
            assert frame.dtypes.equals(other.dtypes), (name, table)
    assert len(kinds["wandb"].prompts) == len(kinds["folder"].prompts) == 7


def test_wandb_gives_the_same_numbers_steps_and_nodes(with_wandb):
    """Steps and nodes lie in the files that W&B was handed."""
    folder = load_results(with_wandb)
    (offline,) = (with_wandb / "wandb").glob("offline-run-*")
    from_wandb = load_results(offline)
    row = from_wandb.runs.iloc[0]
    assert (row["run"], row["sweep"], row["status"]) == ("k1", "sweep", "done")
    columns = [*SUMMARY_COLUMNS, "speedup_low", "speedup_high", "max_new_tokens"]
    assert from_wandb.runs[columns].equals(folder.runs[columns])
    for table in ("prompts", "steps", "nodes"):
        assert getattr(from_wandb, table).equals(getattr(folder, table)), table
    assert len(from_wandb.steps) > len(from_wandb.prompts)
    assert len(from_wandb.nodes) > 0


def test_a_run_that_was_moved_with_its_wandb_folder_keeps_its_steps(
    with_wandb, tmp_path
):
    moved = shutil.copytree(with_wandb, tmp_path / "moved")
    _forget_place(moved, with_wandb)
    steps = load_results(with_wandb).steps
    assert (
        load_results(moved / "wandb")
        .steps.drop(columns="run")
        .equals(steps.drop(columns="run"))
    )


def _forget_place(run, place):
    """Let an offline run name files that are not there, as after a move."""
    (log,) = run.glob("wandb/offline-run-*/*.wandb")
    there = str(place).encode()
    assert there in log.read_bytes()
    log.write_bytes(log.read_bytes().replace(there, there[:-1] + b"_"))


def test_wandb_alone_knows_headline_numbers(with_wandb, tmp_path):
    """Files that changed since are of another run, and take no part."""
    folder = load_results(with_wandb)
    alone = shutil.copytree(with_wandb, tmp_path / "moved/run")
    with (alone / "prompts.jsonl").open("a") as file:
        file.write("\n")
    _forget_place(alone, with_wandb)
    from_wandb = load_results(alone / "wandb")
    columns = ["prompt_idx", "speedup", "num_tokens", "acceptance_rate"]
    assert from_wandb.prompts[columns].equals(folder.prompts[columns])
    assert from_wandb.steps.empty


def test_live_outcomes_give_the_rows_that_the_folder_gives(tmp_path):
    folder = load_results(write_run(tmp_path, "live", full_outcomes()))
    live = results_of(full_outcomes(), run="live", wall_s=1.5)
    for table in ("prompts", "steps", "nodes"):
        assert getattr(live, table).equals(getattr(folder, table))
    columns = list(SUMMARY_COLUMNS)
    assert live.runs[columns].equals(folder.runs[columns])


def test_a_run_has_the_numbers_of_its_summary_and_the_keys_of_its_config(sweep):
    row = load_results(sweep / "k2").runs.iloc[0]
    summary = flatten(json.loads((sweep / "k2/summary.json").read_text()))
    for column, key in SUMMARY_COLUMNS.items():
        if summary.get(key) is not None:
            assert row[column] == summary[key], column
    assert [row["speedup_low"], row["speedup_high"]] == summary["speedup_ci95"]
    assert (row["policy"], row["max_depth"], row["seed"]) == ("Chain", 4, 0)


def test_failed_and_killed_runs_are_listed_by_name_with_what_they_have(results):
    status = results.runs.set_index("run")["status"]
    assert dict(status) == {
        "failed": "failed",
        "k1": "done",
        "k2": "done",
        "killed": "running",
    }
    assert "failed: failed, RuntimeError: out of memory" in str(results)
    assert "killed: running" in str(results)
    num_prompts = results.prompts["run"].value_counts()
    assert num_prompts["failed"] == num_prompts["killed"] == 1  # a torn line is none
    assert set(results.steps["run"]) == {"failed", "k1", "k2"}


def change_status(folder, **changes):
    path = folder / "status.json"
    status = {**json.loads(path.read_text()), **changes}
    kept = {key: value for key, value in status.items() if value is not None}
    path.write_text(json.dumps(kept))


@pytest.mark.parametrize(("written", "told"), [(None, "layout 1"), (99, "layout 99")])
def test_another_layout_among_others_is_refused_by_name(sweep, tmp_path, written, told):
    """Columns of different meaning would be mixed into one table."""
    mixed = shutil.copytree(sweep, tmp_path / "mixed")
    change_status(mixed / "k2", schema=written)
    with pytest.raises(TreespecError, match=told) as caught:
        load_results(mixed)
    assert "k2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_columns_are_refused_by_name(sweep, tmp_path):
    run = shutil.copytree(sweep / "k1", tmp_path / "k1")
    table = pq.read_table(run / "steps.parquet")
    more = table.append_column("num_dreams", pa.array([1] * len(table)))
    pq.write_table(more, run / "steps.parquet")
    with pytest.raises(TreespecError, match=r"k1.*steps\.parquet.*num_dreams"):
        load_results(run)


@pytest.mark.parametrize("name", ["prompts.jsonl", "summary.json", "steps.parquet"])
def test_a_torn_file_of_a_finished_run_is_named(sweep, tmp_path, name):
    run = shutil.copytree(sweep / "k1", tmp_path / "k1")
    content = (run / name).read_bytes()
    half = content[: len(content) // 2]
    (run / name).write_bytes(half + (b"\n" if name == "prompts.jsonl" else b""))
    with pytest.raises(TreespecError, match=name):
        load_results(run)


def test_folders_without_runs_are_told(tmp_path):
    with pytest.raises(TreespecError, match="has no run in it"):
        load_results(tmp_path)
    with pytest.raises(TreespecError, match="is not a folder"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(TreespecError, match="needs a folder"):
        load_results()


def test_the_same_key_in_two_sweeps_is_two_runs(tmp_path):
    """The sweep's name is not part of a run's key."""
    for name in ("a", "b"):
        write_run(tmp_path / name, "k1", full_outcomes())
    found = load_results(tmp_path / "a", tmp_path / "b")
    assert list(found.runs["run"]) == ["a/k1", "b/k1"]
    assert set(found.steps["run"]) == {"a/k1", "b/k1"}
    with pytest.raises(TreespecError, match="given twice"):
        load_results(tmp_path / "a", tmp_path / "a/k1")


def test_a_log_of_wandb_that_was_cut_ends_before_the_cut(with_wandb, tmp_path):
    copy = shutil.copytree(with_wandb / "wandb", tmp_path / "wandb")
    (log,) = copy.glob("offline-run-*/*.wandb")
    log.write_bytes(log.read_bytes()[:-40])
    assert load_results(copy).runs["status"].iloc[0] == "running"
    log.write_bytes(b"something else")
    with pytest.raises(TreespecError, match="no log of W&B"):
        load_results(copy)


def test_a_run_that_never_began_is_listed(tmp_path):
    folder = write_killed(tmp_path)
    (folder / "status.json").unlink()
    assert load_results(folder).runs["status"].iloc[0] == "never begun"
