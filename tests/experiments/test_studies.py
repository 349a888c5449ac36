"""Every study's fast form runs on toys, and its answer is made of the numbers."""

import re
from pathlib import Path

import pytest

from tests.experiments.conftest import FOLDER

TRADITIONAL = "traditional_vs_speculative"
STUDIES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SPEED = ("article_table", "cost_benefit", "latency_throughput", TRADITIONAL)
"""Studies that are run here; others have tests of their own."""


def test_every_study_has_its_code_and_its_configuration():
    code = {path.stem for path in FOLDER.glob("*.py")}
    assert set(STUDIES) <= code
    assert STUDIES


def test_the_fast_form_of_every_study_is_run_by_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*"))
    missing = [name for name in STUDIES if f'"{name}"' not in tests]
    assert not missing


@pytest.mark.parametrize("name", SPEED)
def test_the_fast_form_of_a_study_answers_on_toys(study, tmp_path, name):
    ended = study(name, "--fast")
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
