"""The report fits a terminal, and the command asks for what it lacks in one line."""

import json
import re
from dataclasses import replace

import pytest

from tests.outcomes import make_outcome
from tests.sinks.runs import make_run, record
from tests.sweeps import (
    CHAIN,
    COSTS,
    PLANNER,
    constant,
    prompts,
    scaled,
    write_run,
    write_sweep,
)
from treespec.costs import Costs
from treespec.profile import Machine, Profile
from treespec.regret import regret
from treespec.regret_report import render
from treespec.sinks.run_folder import RunFolderSink
from treespec.sweep import read_sweep

ABOUT = {
    "models": {"target": {"dtype": "float32", "sha256": {"a": "1"}}},
    "drafter": {"_target_": "x.Drafter"},
    "num_threads": 2,
    "torch": "2.13.0",
    "cuda": [],
}
ENVIRONMENT = {
    "models": {"target": {"dtype": "float32", "sha256": {"a": "1"}, "num_layers": 2}},
    "num_threads": 2,
    "cuda": [],
    "cpu": "one",
}


def make_profile(costs=COSTS, measured_at=1.0, cpu="one", **about):
    return Profile(
        costs, (), (), None, None, {**ABOUT, **about}, Machine(cpu, "0"), measured_at
    )


def write_recorded(folder):
    """Leave a sweep of two runs that say what they ran on."""
    outcomes = [make_outcome(str(place), "qa") for place in range(2)]
    for key, policy in (("c", CHAIN), ("p", PLANNER)):
        config = {"policy": policy, "controller": constant()}
        run = make_run(folder, key, drafter=ABOUT["drafter"], **config)
        run = replace(run, environment=ENVIRONMENT)
        record([RunFolderSink()], run, outcomes)


def test_the_tables_name_strategies_regrets_and_bounds(tmp_path):
    write_sweep(tmp_path)
    text = render(regret(read_sweep(tmp_path), COSTS))
    for line in (
        "   0       4.2  planner           Planner (in question)",
        "   1       6.3  chain3            Chain",
        "   3      10.0  planner           no speculation",
        "qa        1 Chain                   +33.3%  -                     +33.3%    "
        "+33.3%     -",
        "story     2 TopKTree                -25.0%",
        "qa              1       3.3        -       4.7     1.1 (2.93x)     2.1 "
        "(1.62x)",
        "Break-even: a chain of 1, 2, 4, 8 drafts of the draft model pays from an "
        "acceptance of",
        "13%, 21%, 34%, 51% on.",
    ):
        assert f"\n{line}" in f"\n{text}", line


def test_everything_fits_88_columns(tmp_path):
    long = "a very long name of a category or strategy"
    texts = prompts({long: [(2,) * (place + 1) for place in range(6)]})
    own = [
        replace(o, speculative=scaled(o, 2.0 + 7 * (place % 2)).speculative)
        for place, o in enumerate(texts)
    ]
    drafter = {"name": long * 3}
    write_run(tmp_path, "a" * 40, own, policy=PLANNER, drafter=drafter)
    write_run(tmp_path, "b" * 40, texts, drafter={"name": "short"})
    write_run(
        tmp_path, "c", texts, drafter=drafter, controller={"_target_": "my.Adaptive"}
    )
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "status.json").write_text(
        json.dumps({"status": "failed", "error": "word " * 50})
    )
    text = render(regret(read_sweep(tmp_path), COSTS))
    assert [line for line in text.splitlines() if len(line) > 88] == []
    assert "nan" not in text
    assert "None" not in text
    assert "left out: torn: failed: word word" in text
    assert " (in question)" in text
    assert " (adaptive, not compared)" in " ".join(text.split())


def test_names_are_told_in_full_and_every_column_is_explained(tmp_path):
    """A name was cut after 54 columns, and with it what set two strategies apart."""
    names = [f"a {'long ' * 20}strategy number {place}" for place in range(2)]
    texts = prompts({"question_answering": [(2, 2)] * 2})
    write_run(tmp_path, "a", texts, policy=PLANNER, drafter={"name": names[0]})
    write_run(tmp_path, "b", texts, drafter={"name": names[1]})
    text = render(regret(read_sweep(tmp_path), COSTS))
    for name in names:
        assert name in " ".join(text.split())
    assert "\nquestion_answering  " in text
    tables = text.split("\n\n")
    for table, explained in ((1, 2), (3, 4)):
        header = re.split(r"  +", tables[table].splitlines()[0])
        known = [name for name in header if name not in ("category", "prompts")]
        assert known
        for name in known:
            assert f"\n  {name}  " in f"\n{tables[explained]}", name


def test_help_says_what_is_asked_for(command):
    ended = command("--help", verb="regret", tiny=False)
    assert (ended.code, ended.err) == (0, "")
    assert "planner=RUN" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 88


def test_a_sweep_without_prompts_has_a_report(tmp_path):
    write_run(tmp_path, "a", [])
    write_run(tmp_path, "b", [], policy=PLANNER)
    assert "nothing to decode" in render(regret(read_sweep(tmp_path), COSTS))


def test_the_command_prints_the_report(command, tmp_path):
    write_sweep(tmp_path / "sweep")
    make_profile().write(tmp_path / "costs.json")
    ended = command("sweep", "costs=costs.json", verb="regret", tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    assert "+33.3%" in ended.out
    ended = command(
        "sweep", "costs=costs.json", "planner=tree", verb="regret", tiny=False
    )
    assert "TopKTree (in question)" in ended.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "regret needs one folder, got 0"),
        (["a", "b"], "regret needs one folder, got 2 (a, b)"),
        (["nowhere"], "there is no such folder"),
        (
            ["sweep", "planer=x"],
            "unknown key of regret 'planer'. Did you mean 'planner",
        ),
        (["sweep", "costs=missing.json"], "missing.json"),
        (["sweep"], "has no cost profile of the run's models, drafter, threads"),
        (["sweep", "planner=x"], "planner=x is no finished run"),
    ],
)
def test_what_is_missing_is_told_in_one_line(command, tmp_path, arguments, says):
    write_sweep(tmp_path / "sweep")
    ended = command(*arguments, verb="regret", tiny=False)
    assert ended.code == 2
    (error,) = ended.errors
    assert says in error
    assert len(ended.err.splitlines()) == 1


def test_the_newest_profile_that_was_kept_of_the_run_is_found(command, tmp_path):
    """Others in the cache are of other models, machines or drafters, or are torn."""
    write_recorded(tmp_path / "sweep")
    kept = tmp_path / "cache" / "profiles"
    kept.mkdir(parents=True)
    cheap = Costs.through({1: 0.001, 8: 0.001}, {1: 0.001})
    profiles = {
        "old": make_profile(cheap, measured_at=1.0),
        "new": make_profile(COSTS, measured_at=2.0),
        "cpu": make_profile(cheap, 3.0, cpu="another"),
        "threads": make_profile(cheap, 3.0, num_threads=8),
        "drafter": make_profile(cheap, 3.0, drafter={}),
        "model": make_profile(cheap, 3.0, models={"target": {"dtype": "bfloat16"}}),
        "pair": make_profile(
            cheap, 3.0, models={**ABOUT["models"], "draft": {"dtype": "int8"}}
        ),
    }
    for name, profile in profiles.items():
        profile.write(kept / f"{name}.json")
    (kept / "torn.json").write_text("{")
    ended = command("sweep", verb="regret", tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    profiles["new"].write(tmp_path / "costs.json")
    named = command("sweep", "costs=costs.json", verb="regret", tiny=False)
    assert ended.out == named.out
    profiles["old"].write(tmp_path / "costs.json")
    other = command("sweep", "costs=costs.json", verb="regret", tiny=False)
    assert ended.out != other.out


PLANNER_OF_THE_USER = """
from treespec.policies import Chain
from treespec.types import Forecast

class EagerPlanner(Chain):
    def forecast(self, tree, situation, num_forwards):
        reason = "off: a test" if situation.length % 2 else "on"
        return Forecast(float(tree.size - 1), 0.001, reason)
"""


def test_real_runs_of_a_planner_and_a_chain_are_compared(command, tmp_path):
    """From decoding to the report: what a policy expects reaches every place."""
    (tmp_path / "my_planner.py").write_text(PLANNER_OF_THE_USER)
    ended = command("policy=custom", "policy._target_=my_planner.EagerPlanner")
    assert (ended.code, ended.errors) == (0, [])
    assert "\nPlanned  " in ended.out
    assert "\nSpeculation     off in " in ended.out
    assert "of the steps: a test\n" in ended.out
    chain = command("policy=chain")
    assert "\nPlanned  " not in chain.out
    make_profile().write(tmp_path / "costs.json")
    ended = command("outputs/default", "costs=costs.json", verb="regret", tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    assert "EagerPlanner (in question)" in ended.out
    assert "\ntiny  " in ended.out
    assert "First drafts that were kept: prompt_lookup" in ended.out
