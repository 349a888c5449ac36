"""Every study's fast form runs on toys, and its answer is made of the numbers."""

import re

import pytest

from tests.experiments.conftest import FOLDER

STUDIES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
# Their fast forms run in a file of their own, which looks at what they tell.
DRAFTING = {
    "adaptive_gamma",
    "draft_choice",
    "predictability",
    "sampling_modes",
    "tree_vs_chain",
}
# Toys are no bfloat16 models, and their limits are not those of real machines.
TOY = ("pair.target.dtype=float32",)


def test_every_study_has_its_code_and_its_configuration():
    code = {path.stem for path in FOLDER.glob("*.py")}
    assert set(STUDIES) <= code
    assert STUDIES


@pytest.mark.parametrize("name", sorted(set(STUDIES) - DRAFTING))
def test_the_fast_form_of_every_study_answers_on_toys(study, tmp_path, name):
    ended = study(name, "--fast", *TOY)
    assert (ended.code, ended.errors) == (0, [])
    report = (tmp_path / f"outputs/studies/{name}/{name}.md").read_text()
    assert "**Answer.** " in report
    assert "nan" not in report.lower().split()
    assert str(tmp_path) not in report
    for figure in re.findall(r"!\[.*?\]\((.*?)\)", report):
        assert (tmp_path / f"outputs/studies/{name}" / figure).is_file()


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_composes_with_the_pair_that_it_names(module, name):
    engine = module("engine")
    plan = engine.read_plan(FOLDER, name)
    for fast in (True, False):
        jobs = engine._compose(plan, engine.Asked(name, fast))
        assert jobs.keys() == plan.jobs.keys()
