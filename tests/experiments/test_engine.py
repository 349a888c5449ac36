"""The engine of studies, on a made-up study and toy models."""

from types import SimpleNamespace

import pandas as pd
import pytest

from tests.experiments.conftest import FOLDER
from treespec.neighbours import beside

RUN = "outputs/studies/made_up"


def test_a_study_runs_its_jobs_and_answers_its_question(study, home, tmp_path):
    ended = study("made_up", home=home)
    assert (ended.code, ended.errors) == (0, [])
    assert "2 of 2 jobs, price 2.0" in ended.out
    report = (tmp_path / RUN / "made_up.md").read_text()
    assert report.startswith("# Does guessing pay on a toy?\n\n**Answer.** 2 of 2 jobs")
    assert "| lookup | 3 |" in report
    assert "Margin 0.1, jobs lookup, model." in report
    assert "![" in report
    assert (
        "3 prompts per job (JsonlDataset: 3 tiny), up to 12 new tokens each, 1 at once"
        in report
    )
    assert (tmp_path / RUN / "made_up_depth.svg").read_text().startswith("<?xml")


def test_no_folder_of_this_machine_gets_into_a_report(study, home, tmp_path):
    study("made_up", home=home)
    report = (tmp_path / RUN / "made_up.md").read_text()
    assert str(tmp_path) not in report
    assert "pair.target.path=DIR/target" in report
    assert "target, float32" in report


def test_a_study_that_was_stopped_goes_on_where_it_was(study, home, module):
    assert study("made_up", home=home).out.count("Nothing was decoded") == 0
    again = study("made_up", home=home)
    assert again.code == 0
    assert again.out.count("Nothing was decoded") == 2


def test_a_failed_job_does_not_end_a_study_and_is_told(study, home, tmp_path):
    ended = study("made_up", home=home, draft=False)
    assert ended.code == 2
    assert "1 of 2 jobs" in ended.out
    assert "failed: model: drafter needs pair.draft" in ended.err
    report = (tmp_path / RUN / "made_up.md").read_text()
    assert "- `model`: drafter needs pair.draft" in report


def test_without_a_job_that_the_answer_needs_there_is_none(study, home, tmp_path):
    text = (home / "made_up.py").read_text().replace('run("lookup")', 'run("model")')
    (home / "made_up.py").write_text(text)
    ended = study("made_up", home=home, draft=False)
    assert ended.code == 2
    assert "no answer without the job model: drafter needs pair.draft" in ended.err
    assert not (tmp_path / RUN / "made_up.md").exists()


def test_jobs_that_overrides_make_equal_are_refused(study, home):
    ended = study("made_up", "drafter=draft_model", home=home)
    assert ended.code == 2
    assert "the jobs lookup and model are one and the same" in ended.errors[0]


def test_if_every_job_fails_there_is_no_answer(study, home):
    ended = study("made_up", "pair.target.path=nowhere", home=home)
    assert ended.code == 2
    assert "there is no answer, as every job failed" in ended.err
    assert ended.err.count("failed: ") == 2


def test_the_fast_form_is_smaller_and_says_so(study, home, tmp_path):
    assert study("made_up", "--fast", home=home).code == 0
    report = (tmp_path / RUN / "made_up.md").read_text()
    assert "| lookup | 1 |" in report
    assert "measures nothing" in report
    assert "made_up --fast" in report


def test_what_is_fast_is_not_written_as_an_answer(study, home):
    ended = study("made_up", "--fast", "--write", home=home)
    assert ended.code == 2
    assert len(ended.errors) == 1


def test_settings_are_changed_from_the_command_line(study, home, tmp_path):
    given = ("settings.price=3.5", "settings.margins.least=0.2")
    assert study("made_up", *given, home=home).code == 0
    report = (tmp_path / RUN / "made_up.md").read_text()
    assert "price 3.5" in report
    assert "Margin 0.2" in report
    ended = study("made_up", "settings.pice=1", home=home)
    assert ended.code == 2
    assert "Did you mean 'settings.price'?" in ended.errors[0]


def test_written_answers_stand_beside_the_study_and_in_the_index(study, home):
    assert study("made_up", "--write", home=home).code == 0
    index = (home / "README.md").read_text()
    row = "| [`made_up`](made_up.md) | Does guessing pay on a toy? | 2 of 2 jobs, price"
    assert row in index
    assert "old" not in index
    assert index.endswith("<!-- studies: end -->\n\nMore.\n")
    assert (home / "made_up_depth.svg").is_file()
    study("made_up", "--write", "settings.price=7", home=home)
    assert (home / "README.md").read_text() == index.replace("price 2.0", "price 7")


def test_the_index_names_studies_that_are_not_measured_yet(module, home):
    assert module("run").main(["--write"], home) == 0
    row = "| `made_up` | Does guessing pay on a toy? | not measured yet |"
    assert row in (home / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["made"], "unknown study 'made'. Did you mean 'made_up'?"),
        (["made_up", "polcy=chain"], "unknown key polcy. Did you mean policy?"),
        (["made_up", "policy=chan"], "unknown policy=chan. Did you mean policy=chain?"),
        (["made_up", "fast"], "cannot read 'fast': write --fast, --write or key=value"),
        (["made_up", "seed=-1"], "seed must be an integer >= 0, got -1"),
        (["made_up", "seed=1,2"], "seed=1,2"),
        (["made_up", "settings.price=["], "settings.price: cannot read '['"),
        (["made_up", "settings.price=abc"], "price must be a number, got 'abc'"),
        (["made_up", "settings.price=.nan"], "price must be a number, got nan"),
        (["made_up", "settings.price=true"], "price must be a number, got True"),
        (["made_up", "settings.price=0"], "settings.price must be a number > 0, got 0"),
        (["made_up", "settings.margins=null"], "must be keys with values"),
        (["made_up", "settings.margins={}"], "settings.margins.least is missing"),
        (
            ["made_up", "settings.margins.least=2"],
            "settings.margins.least must be a number >= 0 and <= 1, got 2",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_runs(
    study, home, arguments, told
):
    ended = study(*arguments, home=home)
    assert ended.code == 2
    assert len(ended.errors) == 1
    assert told in ended.errors[0]
    assert len(ended.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("settings:", "setings:", "Did you mean 'settings'?"),
        ("[num_prompts=1]", "num_prompts=1", "fast must be a list of overrides"),
        ("question:", "fast2:", "unknown key of made_up.yaml 'fast2'"),
        ("jobs:", "jobs: [", "made_up.yaml: not YAML"),
    ],
)
def test_a_mistake_in_a_study_is_told_in_one_line(study, home, old, new, told):
    text = (home / "made_up.yaml").read_text()
    (home / "made_up.yaml").write_text(text.replace(old, new))
    ended = study("made_up", home=home)
    assert ended.code == 2
    assert told in ended.errors[0]


def test_studies_are_listed_with_their_questions(module, home, capsys):
    assert module("run").main([], home) == 0
    assert "made_up: Does guessing pay on a toy?" in capsys.readouterr().out


def test_an_interrupt_ends_a_study_with_130(module, home, study, monkeypatch):
    def interrupt(job, models):
        raise KeyboardInterrupt

    monkeypatch.setattr(module("engine"), "run", interrupt)
    ended = study("made_up", home=home)
    assert ended.code == 130
    assert "the same command goes on" in ended.err


def test_a_crash_in_one_job_leaves_the_others(module, home, study, monkeypatch):
    engine = module("engine")
    real = engine.run

    def crash(job, models):
        if "DraftModel" in str(job.config["drafter"]):
            raise RuntimeError("no\nmemory")
        return real(job, models)

    monkeypatch.setattr(engine, "run", crash)
    ended = study("made_up", home=home)
    assert ended.code == 1
    assert "failed: model: RuntimeError: no memory" in ended.err


def test_numbers_in_tables_are_rounded_to_be_read(module):
    report = module("report")
    shown = [report.cell(value) for value in (1850.4, 22.51, 2.574, -0.5, 3, None)]
    assert shown == ["1,850", "22.5", "2.57", "-0.50", "3", "-"]
    assert report.cell(float("nan")) == "-"
    assert report.cell("a|b") == "a\\|b"


def test_the_committed_index_is_that_of_the_reports_beside_it(module):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert module("report").indexed(FOLDER, text) == text


WRONG = {
    "adaptive_gamma": ("block=0", "ease_by=constant_9", "easy_from=1.5"),
    "article_table": (
        "article=null", "article.gamma_5.latency_ms=0", "cost_ratios=[]",
        "cost_ratios=abc", "tasks=[code]",
    ),
    "cost_benefit": (
        "machines=[]", "machines=[{name: a}]", "tokens_per_request=1.5", "reserve=1",
        "price_ratios=[0]", "acceptance_changes=[up]",
        "machines=[{name: a, price_per_hour: 1, memory_gib: 1, disk: 1}]",
    ),
    "draft_choice": ("names=3", "sampled=[nobody]"),
    "predictability": ("costs_of=nobody",),
    "sampling_modes": ("rules=null", "law_check.num_texts=0", "law_check.jobs=[x]"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "setting"), [(n, s) for n, wrong in WRONG.items() for s in wrong]
)
def test_a_study_tells_a_wrong_setting_before_its_first_job(
    study, module, name, setting
):
    """Else it costs all of a study's measurements, and ends in a traceback."""
    ended = study(name, f"settings.{setting}", home=FOLDER)
    assert ended.code == 2
    assert len(ended.err.strip().splitlines()) == 1
    assert setting.partition("=")[0].partition("[")[0] in ended.errors[0]


def test_every_setting_of_every_study_has_a_rule(module):
    for name in module("engine").study_names(FOLDER):
        plan, study = module("engine").read_plan(FOLDER, name), module(name).STUDY
        assert set(plan.settings) == set(study.rules), name


def test_a_job_that_had_company_is_no_measurement(study, home):
    """Its seconds once were published, though its own summary told none."""
    with beside(["cpu"]):
        ended = study("made_up", home=home)
    assert ended.code == 1
    assert ended.err.count("other jobs ran beside it on its device") == 4
    assert "there is no answer, as every job failed" in ended.err


def test_a_violation_in_a_job_that_failed_is_no_passed_check(module):
    """Such a job is not among the runs, so nothing seemed to be wrong."""
    law = module("sampling_modes")._law
    settings = {"law_check": {"jobs": ["tree_1"]}}
    exact, fits, vacuous = (
        pd.DataFrame({"verdict": [word]})
        for word in ("lossless", "fits", "too few rejections to tell")
    )
    why = "1 of 5 texts are not what the target would have written (see there)"

    def told(missing, counted):
        measured = SimpleNamespace(missing=missing, settings=settings)
        return law(measured, [], exact, counted)

    assert told({}, fits) == "every check of the law passed"
    assert told({"greedy_0": why}, fits) == "a check of the law FAILED"
    assert "not all of them could be made" in told({"greedy_0": "out of memory"}, fits)
    assert "not all of them could be made" in told({}, vacuous)
