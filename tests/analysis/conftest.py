"""Runs on disk of every kind that can be found there."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.outcomes import make_outcome, make_result, make_steps
from tests.sinks.runs import make_run, record
from treespec.analysis import load_results
from treespec.outcome import PromptOutcome
from treespec.sinks.base import recording
from treespec.sinks.rows import prompt_row
from treespec.sinks.run_folder import RunFolderSink

JUDGED = {
    "judged_sources": ("copy", "copy", "model"),
    "judged_ranks": (0, 1, 0),
    "judged_depths": (1, 1, 2),
    "judged_probs": (0.9, 0.05, 0.5),
    "judged_accepted": (True, False, False),
    "expected_accepted": 1.5,
}


def full_outcomes():
    """Return six prompts of one category and one of another, with all that there is."""
    outcomes = [
        make_outcome(f"p{number}", "qa", accepted=(2, 0, 1, number % 3), traced=True)
        for number in range(6)
    ]
    outcomes.append(make_outcome("other", "story", accepted=(1, 1)))
    return [_judged(outcome) for outcome in outcomes]


def _judged(outcome: PromptOutcome) -> PromptOutcome:
    steps = tuple(replace(step, **JUDGED) for step in outcome.speculative.steps)
    return replace(outcome, speculative=replace(outcome.speculative, steps=steps))


def write_run(folder, key, outcomes, **config):
    """Write a finished run; return its folder."""
    run = make_run(folder, key, **config)
    record([RunFolderSink()], run, outcomes)
    return run.folder


def write_failed(folder, key="failed"):
    """Write a run that failed after its first prompt."""
    run = make_run(folder, key)
    with suppress(RuntimeError), recording([RunFolderSink()], run) as recorded:
        recorded.prompt(make_outcome("a"))
        raise RuntimeError("out of memory")
    return run.folder


def write_killed(folder, key="killed"):
    """Write what a kill in the middle of the second prompt leaves."""
    path = write_run(folder, key, [make_outcome("a")])
    (path / "DONE").unlink()
    (path / "summary.json").unlink()
    (path / "steps.parquet").rename(path / "steps.parquet.partial")
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps({**status, "status": "running"}))
    line = json.dumps(prompt_row(1, make_outcome("b")))
    with (path / "prompts.jsonl").open("a") as file:
        file.write(line[: len(line) // 2])
    return path


@pytest.fixture(scope="package")
def sweep(tmp_path_factory):
    """A sweep of two finished runs, a failed and a killed one."""
    # With nothing beside it: some test loads all that is in the folder above.
    folder = tmp_path_factory.mktemp("above") / "sweep"
    for key, depth in (("k1", 2), ("k2", 4)):
        policy = {"_target_": "treespec.policies.Chain", "least": depth / 10}
        budget = {"max_depth": depth, "max_width": 1, "max_nodes": depth}
        write_run(folder, key, full_outcomes(), policy=policy, controller=budget)
    write_failed(folder)
    write_killed(folder)
    return folder


@pytest.fixture(scope="package")
def results(sweep):
    """The sweep, loaded."""
    return load_results(sweep)


@pytest.fixture(scope="package")
def one(results):
    """One finished run of it."""
    return results.only("k1")


@pytest.fixture(scope="package")
def odd_results(tmp_path_factory):
    """Results by name of which a plot may find little or nothing to show."""
    folder = tmp_path_factory.mktemp("odd")
    return {
        "empty": load_results(write_run(folder, "empty", [])),
        "failed": load_results(write_failed(folder)),
        "killed": load_results(write_killed(folder)),
        "single prompt": load_results(write_run(folder, "one", full_outcomes()[:1])),
        "nothing drafted": load_results(write_run(folder, "plain", [_plain()])),
        "one token": load_results(
            write_run(folder, "short", [make_outcome("a", accepted=())])
        ),
    }


def _plain():
    steps = make_steps((0, 0, 0), ())
    result = make_result(steps)
    return PromptOutcome("plain", "qa", result, result, "identical")
