"""The search for a planner's options, on a toy pair."""

import re
import shlex

import pytest

from treespec.cli import run_command

optuna = pytest.importorskip("optuna", reason="pip install 'treespec[optuna]'")


@pytest.fixture
def given(tiny_files, tmp_path, monkeypatch):
    """What a search on the toy pair needs, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return [*tiny_files.overrides, "drafter=prompt_lookup", "num_prompts=1"]


def test_a_search_goes_on_where_it_stopped_and_tells_the_best(
    module, given, tmp_path, capsys
):
    script = module("optuna_planner")
    assert script.main(["2", *given]) == 0
    assert len(list(tmp_path.glob("outputs/optuna/*/DONE"))) == 2
    assert script.main(["1", *given]) == 0
    out = capsys.readouterr().out
    assert "[trial 2]" in out
    *_, told, best = out.strip().splitlines()
    assert re.fullmatch(r"best of 3: \d+\.\d\dx", told)
    assert run_command([*shlex.split(best)[1:], "sweep_name=optuna"]) == 0
    assert "finished before" in capsys.readouterr().out


def test_a_trial_that_fails_does_not_end_the_search(
    module, given, tmp_path, capsys, monkeypatch
):
    script = module("optuna_planner")
    run, calls = script.run, []

    def failing(job, models):
        calls.append(job)
        if len(calls) == 1:
            raise RuntimeError("out of memory,\nsay")
        return run(job, models)

    monkeypatch.setattr(script, "run", failing)
    assert script.main(["2", *given]) == 0
    shown = capsys.readouterr()
    assert "error: out of memory, say" in shown.err
    assert "best of 1" in shown.out


def test_a_search_without_a_number_of_trials_is_refused(module, capsys):
    assert module("optuna_planner").main(["pair=smollm2"]) == 2
    assert "TRIALS" in capsys.readouterr().err
