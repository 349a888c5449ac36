"""Sweeps that are killed, run twice at once, fail in part, and are summed up."""

import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.forks import NUM_KILLS
from tests.test_cli import BOOM
from treespec.neighbours import beside
from treespec.sinks.run_folder import DONE, LOCK
from treespec.sinks.wandb_reader import read_offline_run
from treespec.sweep_log import SWEEP_LOG, JobEnded, Plan, SweepLog

ROOT = Path(__file__).parents[1]
NUM_JOBS = 12
RAISE = 'raise RuntimeError("out of memory, say")'


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    """Hydra 1.4 asks before it builds a class that a folder of configurations names."""
    monkeypatch.setenv("TREESPEC_PLUGINS", "my_boom")


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
    assert set(killed["decoded"]) == {1}  # of those that were not killed at their end
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


def _with_boom(tmp_path, body=BOOM):
    """Offer ``policy=boom``; return the words that it takes to find it."""
    sys.modules.pop("my_boom", None)
    (tmp_path / "my_boom.py").write_text(body)
    own = tmp_path / "my_conf" / "policy"
    own.mkdir(parents=True)
    (own / "boom.yaml").write_text("_target_: my_boom.Boom\nx: 1\n")
    return f"hydra.searchpath=[file://{tmp_path}/my_conf]"


def _left(out):
    """Return the command that a summary ends with, as words after ``treespec``."""
    *_, line = [line for line in out.splitlines() if line.startswith("  treespec ")]
    return shlex.split(line)[1:]


def test_the_command_that_is_told_runs_what_failed_and_nothing_else(command, tmp_path):
    search = _with_boom(tmp_path)
    ended = command(search, "-m", "policy=chain,boom", "force=true", "seed=1,2")
    assert ended.code == 1
    assert "4 jobs: 2 done, 2 failed, 0 missing" in ended.out
    states = [
        json.loads(p.read_text()) for p in tmp_path.glob("outputs/*/*/status.json")
    ]
    tracebacks = [state["traceback"] or "" for state in states]
    assert sum("my_boom.py" in text for text in tracebacks) == 2
    words = _left(ended.out)
    assert "force=true" not in words
    mended = BOOM.replace("raise RuntimeError", "RuntimeError")
    (tmp_path / "my_boom.py").write_text(mended)
    sys.modules.pop("my_boom")
    again = command(*words, tiny=False)
    assert again.code == 0, again.err
    assert "so far: 4 jobs: 2 done, 2 failed, 0 missing" in again.out
    assert again.out.count("finished before:") == 2
    assert "4 jobs: 4 done, 0 failed, 0 missing" in again.out
    assert "to run what is left" not in again.out


def test_a_job_that_leaves_python_does_not_take_the_sweep_with_it(command, tmp_path):
    """``sys.exit`` in a class of the user once ended all jobs, with its own code."""
    body = BOOM.replace(RAISE, "raise SystemExit(0)")
    ended = command(_with_boom(tmp_path, body), "-m", "policy=boom,chain")
    assert ended.code == 1
    assert "2 jobs: 1 done, 1 failed, 0 missing" in ended.out
    assert "failed   policy=boom: SystemExit: 0; the traceback is in" in ended.out


def test_an_interrupted_sweep_says_what_is_left_and_the_next_call_does_too(
    command, tmp_path
):
    stopped = BOOM.replace(RAISE, "raise KeyboardInterrupt")
    search = _with_boom(tmp_path, stopped)
    ended = command(search, "-m", "policy=chain,boom,top_k_tree")
    assert ended.code == 130
    assert "3 jobs: 1 done, 0 failed, 2 missing" in ended.out
    assert "missing  policy=boom: interrupted after 0 prompts" in ended.out
    assert "missing  policy=top_k_tree: not begun" in ended.out
    again = command(*_left(ended.out), tiny=False)
    assert "so far: 3 jobs: 1 done, 0 failed, 2 missing" in again.out
    assert again.code == 130


def test_a_job_that_cannot_be_built_is_told_with_the_others(command, tmp_path):
    ended = command("-m", "policy.top_k=x,2")
    assert ended.code == 2
    assert "2 jobs: 1 done, 1 failed, 0 missing" in ended.out
    assert "failed   policy.top_k=x: policy.top_k must be an integer" in ended.out


def test_a_run_that_another_process_is_at_is_left_to_it(command, tmp_path):
    assert command("policy=chain").code == 0
    (done,) = tmp_path.glob("outputs/*/*/DONE")
    done.unlink()
    claimed = os.open(done.parent / LOCK, os.O_RDWR)
    fcntl.flock(claimed, fcntl.LOCK_EX)
    ended = command("-m", "policy=chain,top_k_tree")
    assert ended.code == 4
    assert "2 jobs: 1 done, 0 failed, 0 missing, 1 running" in ended.out
    assert "running  policy=chain: another process is at it" in ended.out
    assert ended.err.count("loading the target model") == 1  # of the other job
    os.close(claimed)
    again = command("-m", "policy=chain,top_k_tree")
    assert again.code == 0
    assert "2 jobs: 2 done" in again.out


def test_a_run_that_another_process_finished_meanwhile_is_not_run_again(
    command, tmp_path, monkeypatch
):
    """Between the look for DONE and the claim to the folder, models are loaded."""
    assert command().code == 0
    (done,) = tmp_path.glob("outputs/*/*/DONE")
    status = (done.parent / "status.json").read_bytes()
    looks = []

    def too_early(folder):
        looks.append(folder)
        return False

    monkeypatch.setattr("treespec.runner.is_done", too_early)
    again = command()
    assert looks
    assert (again.code, again.errors) == (0, [])
    assert "This run was finished before" in again.out
    assert (done.parent / "status.json").read_bytes() == status


def test_the_jobs_of_a_sweep_are_planned_as_hydra_composes_them(command, tmp_path):
    """Quotes, lists, ranges, keys in another order: each job is found again."""
    ended = command(
        "-m", "stop=['a b'],[x,y]", "seed=range(1,3)", "wandb.project='a, b'",
        "num_prompts=1", "force=false", "++max_new_tokens=4", "hydra.verbose=false",
        "controller.max_depth=2", "controller.max_depth=3",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    content = SweepLog(tmp_path / "outputs/default").read()
    (plan,) = content.plans
    assert len(plan.jobs) == 4
    assert set(content.jobs) == set(plan.jobs)
    assert set(content.ends) == set(plan.jobs)


def test_sweeps_of_one_command_into_several_folders_have_a_log_each(command, tmp_path):
    ended = command("-m", "sweep_name=one,two", "seed=1,2", "num_prompts=1")
    assert ended.code == 0
    for name in ("one", "two"):
        (plan,) = SweepLog(tmp_path / "outputs" / name).read().plans
        assert len(plan.jobs) == 2
        assert f"outputs/{name}: 2 jobs: 2 done" in ended.out


def test_a_single_run_is_told_to_the_sweep_that_planned_it(command, tmp_path):
    """Else a job that was rerun alone would stay missing for ever."""
    stopped = BOOM.replace(RAISE, "raise KeyboardInterrupt")
    search = _with_boom(tmp_path, stopped)
    assert command(search, "-m", "policy=boom,chain").code == 130
    assert command(search, "policy=chain").code == 0
    told = command("outputs/default", verb="collect", tiny=False)
    assert "done     policy=chain" in told.out


def test_collect_makes_a_row_of_every_job_whatever_became_of_it(command, tmp_path):
    search = _with_boom(tmp_path)
    command(search, "-m", "policy=chain,boom", "seed=3,4")
    command("policy=top_k_tree")  # no job of the sweep
    log = SweepLog(tmp_path / "outputs/default")
    log.plan(Plan(("-m", "seed=9,8"), str(tmp_path), (("seed=9",), ("seed=8",))))
    told = command("outputs/default", verb="collect", tiny=False)
    assert told.code == 1
    assert "7 jobs: 3 done, 2 failed, 2 missing" in told.out
    assert "  treespec -m seed=9,8" in told.out
    assert told.out.strip().endswith("outputs/default/sweep.parquet")
    rows = pq.read_table(tmp_path / "outputs/default/sweep.parquet").to_pylist()
    assert [row["status"] for row in rows] == [
        "done", "done", "failed", "failed", "missing", "missing", "done",
    ]  # fmt: skip
    done, failed, missing = rows[0], rows[2], rows[4]
    assert done["speedup"] > 0
    assert (done["seed"], done["policy"]) == (3, "Chain")
    assert done["config.policy._target_"] == "treespec.policies.Chain"
    assert done["error"] is None
    assert "out of memory" in failed["error"]
    assert failed["config.seed"] == "3"
    assert (missing["run_key"], missing["speedup"]) == (None, None)
    assert missing["overrides"] == "seed=9"


def test_collect_of_a_done_sweep_needs_no_log(command, tmp_path):
    command("seed=1")
    command("seed=2")
    told = command("outputs/default", verb="collect", tiny=False)
    assert told.code == 0
    assert "2 jobs: 2 done" in told.out


def test_collect_tells_a_run_whose_files_are_torn_and_reads_the_rest(command, tmp_path):
    command("-m", "seed=1,2")
    first, _ = sorted(tmp_path.glob("outputs/default/*/DONE"))
    (first.parent / "summary.json").write_text("{")
    told = command("outputs/default", verb="collect", tiny=False)
    assert told.code == 1
    assert "2 jobs: 1 done, 1 failed" in told.out
    assert "summary.json: not JSON" in told.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "collect needs one folder, got 0"),
        (["a", "b"], "collect needs one folder, got 2 (a, b)"),
        (["no/such"], "no/such is no folder"),
        (["."], ". has no sweep.jsonl and no run"),
    ],
)
def test_collect_refuses_in_one_line(command, words, says):
    told = command(*words, verb="collect", tiny=False)
    assert told.code == 2
    assert len(told.err.splitlines()) == 1
    assert told.errors[0].startswith(f"error: {says}")


JOBS = (("seed=1",), ("seed=2",))


def test_a_line_that_a_kill_has_torn_is_no_line_and_spoils_no_other(tmp_path):
    log = SweepLog(tmp_path)
    log.plan(Plan(("-m", "seed=1,2"), "/", JOBS))
    with log.path.open("a") as file:
        file.write('{"event": "begun", "job": ["se')
    assert log.read().jobs == list(JOBS)
    log.begin(JOBS[1], "key")
    log.end(JOBS[1], JobEnded(1, "boom"))
    content = log.read()
    assert content.keys == {JOBS[1]: "key"}
    assert content.ends == {JOBS[1]: JobEnded(1, "boom")}


def test_the_same_command_again_is_one_plan_and_a_job_that_begins_has_not_ended(
    tmp_path,
):
    log = SweepLog(tmp_path)
    for _ in range(2):
        log.plan(Plan(("-m", "seed=1,2"), "/", JOBS))
        log.begin(JOBS[0], "key")
        assert log.read().ends == {}
        log.end(JOBS[0], JobEnded(1, "boom"))
    assert len(log.read().plans) == 1


def test_the_command_for_the_rest_says_where_to_type_it():
    plan = Plan(("-m", "seed=1,2", "stop=[a b]", "force=true"), "/my place", JOBS)
    assert plan.again("/my place") == "treespec -m seed=1,2 'stop=[a b]'"
    assert plan.again("/").startswith("cd '/my place' && treespec -m")


def test_a_folder_that_cannot_be_written_is_one_line_for_every_job(command, tmp_path):
    (tmp_path / "outputs").write_text("a file, where the folder should be")
    ended = command("-m", "seed=1,2")
    assert ended.code == 2
    assert len(ended.errors) == 2
    assert all("output_root: cannot write" in line for line in ended.errors)


def test_jobs_that_share_the_machine_claim_no_speed(command, read_runs, monkeypatch):
    """A sweep of two jobs at once on two cores once looked like a slowdown."""
    with beside(["cpu"]):
        ended = command("wandb.mode=offline")
    assert (ended.code, ended.errors) == (0, [])
    assert "another job ran beside it" in ended.out
    assert not re.search(r"\d\.\d\dx", ended.out)
    assert "speed-up so far" not in ended.err
    (run,) = read_runs()
    assert run.summary["num_jobs_beside"] == 1
    assert run.summary["speedup"] is None
    assert run.summary["latency_ms"]["p50"] is None
    assert run.summary["categories"]["tiny"]["tokens_per_second"] is None
    assert run.summary["mean_acceptance_length"] > 1
    (folder,) = (run.folder / "wandb").glob("offline-run-*")
    told = read_offline_run(folder)
    assert not any("speedup" in row or "prompt/speedup" in row for row in told.prompts)
    assert told.summary.get("speedup") is None
    alone = command("force=true")
    assert re.search(r"Speed-up +\d\.\d\dx", alone.out)
    (run,) = read_runs()
    assert run.summary["num_jobs_beside"] == 0


def test_regret_refuses_times_of_jobs_that_shared_the_machine(command, tmp_path):
    with beside(["cpu"]):
        command("policy=chain")
    told = command("outputs/default", verb="regret", tiny=False)
    assert told.code == 2
    assert "1 other jobs ran beside it" in told.errors[0]


LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": (
        "hydra_plugins.hydra_submitit_launcher",
        ["hydra.launcher.timeout_min=2"],
    ),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jobs_of_other_launchers_are_told_like_those_of_this_process(
    command, tmp_path, launcher
):
    plugin, settings = LAUNCHERS[launcher]
    pytest.importorskip(plugin, reason="pip install 'treespec[parallel,slurm]'")
    search = _with_boom(tmp_path)
    ended = command(
        search, "-m", "policy=chain,boom,top_k_tree", f"hydra/launcher={launcher}",
        *settings,
    )  # fmt: skip
    assert ended.code == 1, ended.err
    assert "3 jobs: 2 done, 1 failed, 0 missing" in ended.out
    assert "failed   policy=boom: RuntimeError: out of memory" in ended.out
    summaries = [
        json.loads((done.parent / "summary.json").read_text())
        for done in tmp_path.glob(f"outputs/default/*/{DONE}")
    ]
    assert len(summaries) == 2
    for summary in summaries:
        assert (summary["speedup"] is None) == (summary["num_jobs_beside"] > 0)
    assert (tmp_path / "outputs/default" / SWEEP_LOG).is_file()


BREAKS = {
    "cut prompts": ("prompts.jsonl", lambda file: file.write_bytes(b'{"id": ')),
    "a prompt less": ("prompts.jsonl", lambda file: file.write_bytes(b"")),
    "empty steps": ("steps.parquet", lambda file: file.write_bytes(b"")),
    "no configuration": ("config.yaml", lambda file: file.unlink()),
    "torn status": ("status.json", lambda file: file.write_text("{")),
    "null summary": ("summary.json", lambda file: file.write_text("null")),
    "no machine": ("env.json", lambda file: file.unlink()),
}


@pytest.mark.parametrize(("name", "break_it"), BREAKS.values(), ids=BREAKS)
def test_a_finished_run_that_broke_is_failed_to_all_and_redone_by_its_command(
    command, tmp_path, name, break_it
):
    """A sweep called it finished, ``collect`` failed, and nothing ran it again."""
    sweep = ("-m", "seed=1,2")
    assert command(*sweep).code == 0
    first, second = sorted(tmp_path.glob("outputs/default/*/DONE"))
    kept = (second.parent / "status.json").read_bytes()
    break_it(first.parent / name)
    told = command("outputs/default", verb="collect", tiny=False)
    assert told.code == 1
    assert "2 jobs: 1 done, 1 failed" in told.out
    (line,) = [line for line in told.out.splitlines() if "failed  " in line]
    assert name in line
    assert "force" not in told.out
    again = command(*sweep)
    assert again.code == 0
    assert "2 jobs: 2 done" in again.out
    assert "note: this run was finished, but its files broke: outputs/" in again.err
    assert (second.parent / "status.json").read_bytes() == kept
    told = command("outputs/default", verb="collect", tiny=False)
    assert "2 jobs: 2 done" in told.out


def test_collect_tells_how_to_redo_a_run_that_is_whole_and_says_what_it_must_not(
    command, tmp_path
):
    assert command("-m", "seed=1,2").code == 0
    first, _ = sorted(tmp_path.glob("outputs/default/*/DONE"))
    status = first.parent / "status.json"
    status.write_text(status.read_text().replace('"schema": ', '"schema": 9'))
    told = command("outputs/default", verb="collect", tiny=False)
    assert "2 jobs: 1 done, 1 failed" in told.out
    (line,) = [line for line in told.out.splitlines() if line.endswith("force=true")]
    seed = yaml.safe_load((first.parent / "config.yaml").read_text())["seed"]
    assert f"seed={seed}" in line


def test_collect_says_when_lines_of_the_log_are_broken(command, tmp_path):
    """The jobs that were planned there would be forgotten without a word."""
    assert command("-m", "seed=1,2").code == 0
    log = tmp_path / "outputs/default/sweep.jsonl"
    log.write_text(log.read_text().replace('{"event": "planned"', '{"event": "pla', 1))
    told = command("outputs/default", verb="collect", tiny=False)
    assert told.code == 1
    assert "note: 1 broken line(s) of outputs/default/sweep.jsonl" in told.out
    assert "give the sweep's own command again" in told.out
