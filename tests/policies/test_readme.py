"""The page of published methods is executed, line by line, on tiny models."""

import re
import shlex
from pathlib import Path

import pytest

from treespec.calibration import Calibration
from treespec.costs import Costs

PAGE = Path(__file__).parents[2] / "treespec/policies/README.md"
TEXT = PAGE.read_text(encoding="utf-8")
METHODS = re.findall(r"^\| (.+?) \| `(drafter=.+?)` \|", TEXT, flags=re.MULTILINE)
COMMANDS = re.findall(r"^    treespec (.*)$", TEXT, flags=re.MULTILINE)


@pytest.fixture
def calibration(tmp_path: Path) -> str:
    """Write what ``treespec calibrate`` would."""
    costs = Costs.through({1: 1.0, 2: 1.0, 8: 1.1, 64: 2.0}, {1: 0.1, 8: 0.1})
    counts = (50, 20, 10, 6, 4, 3, 2, 1)
    path = tmp_path / "calibration.json"
    Calibration((100, 100, 100, 100, 100), (counts,) * 5, costs).write(path)
    return str(path)


@pytest.mark.parametrize(("method", "line"), METHODS, ids=[m for m, _ in METHODS])
def test_a_published_method_runs_and_is_lossless(
    method, line, command, tiny_files, calibration, read_runs
) -> None:
    words = shlex.split(line.replace("FILE", calibration))
    ended = command(
        f"pair.draft.path={tiny_files.draft}",
        "num_prompts=2",
        "max_new_tokens=24",
        "warmup=false",
        *words,
    )
    assert (ended.code, ended.errors) == (0, [])
    (run,) = read_runs()
    lossless = run.summary["lossless"]
    assert lossless["rule_is_lossless"]
    assert lossless["violations"] == 0
    # A planner may find that drafting does not pay, as on models this small.
    assert run.summary["mean_candidates"] > 0 or "planner" in line


def test_every_drafter_and_every_policy_is_on_the_page() -> None:
    conf = PAGE.parents[2] / "conf"
    for group in ("drafter", "policy"):
        options = {path.stem for path in (conf / group).glob("*.yaml")}
        named = set(re.findall(rf"\b{group}=(\w+)", TEXT))
        plain = {"custom", "suffix", "token_recycling", "top_k_tree", "static_tree"}
        assert options - named <= plain | {"comb_tree"}


def test_the_commands_that_measure_and_choose_a_tree_run(
    command, tiny_files, calibration
) -> None:
    assert len(COMMANDS) == 2
    for line in COMMANDS:
        words = shlex.split(line.replace("FILE", calibration))
        flag = [word for word in words if word == "calibrate"]
        ended = command(
            *flag,
            *tiny_files.overrides,
            f"pair.draft.path={tiny_files.draft}",
            "warmup=false",
            *(word for word in words if word not in flag),
            tiny=False,
        )
        assert (ended.code, ended.errors) == (0, [])
