"""The README is executed: its code as it stands, its commands on tiny models."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treespec import acceptance
from treespec.acceptance.base import ANY_PROPOSAL
from treespec.types import ProposalKind

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, flags=re.DOTALL)
POLICY = next(code for _, code in BLOCKS if code.startswith("# my_policy.py"))
RULE = next(code for _, code in BLOCKS if code.startswith("# my_rule.py"))
DRAFTER = next(code for _, code in BLOCKS if code.startswith("# my_drafter.py"))
PYTHON = [code for _, code in BLOCKS if code.startswith(("from", "# test_my"))]
(YAML,) = (code for kind, code in BLOCKS if kind == "yaml")
COMMANDS = re.findall(
    r"^    (treespec (?!check |collect ).*)$", README, flags=re.MULTILINE
)
VERBS = {"calibrate": "outputs/*/*/calibration.json", "profile": "cache/profiles/*"}
"""What a command leaves behind, if it is no run."""
COLLECTED = re.findall(
    r"^    (treespec -m .*)\n    (treespec collect .*)$", README, re.M
)
CHECKS = re.findall(r"^    (treespec check .*)$", README, flags=re.MULTILINE)
SETUP = re.findall(r"^    pip install .*$", README, flags=re.MULTILINE)


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """Write the files that the README tells the reader to write."""
    (tmp_path / "my_policy.py").write_text(POLICY)
    (tmp_path / "my_rule.py").write_text(RULE)
    (tmp_path / "my_drafter.py").write_text(DRAFTER)
    (tmp_path / "my_conf/policy").mkdir(parents=True)
    (tmp_path / "my_conf/policy/sure.yaml").write_text(YAML)
    line = re.search(r'`(\{"id".*?\})`', README)
    assert line is not None
    (tmp_path / "prompts.jsonl").write_text(line[1] + "\n")
    yield tmp_path
    for name in ("my_policy", "my_rule", "my_drafter"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("code", PYTHON)
def test_python_code_runs_as_it_stands(code: str, tiny_files) -> None:
    code = code.replace('"DIR"', repr(str(tiny_files.target)))
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    for test in [value for name, value in names.items() if name.startswith("test_")]:
        test()


def test_a_class_of_ten_lines_has_ten_lines() -> None:
    for code in (POLICY, RULE):
        body = code[code.index("@dataclass") :].splitlines()
        assert len([line for line in body if line.strip()]) <= 10


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_does_what_the_readme_says(
    line, command, workplace, tiny_files
) -> None:
    words = shlex.split(line.replace("DIR", str(tiny_files.target)))[1:]
    flags = [word for word in words if word.startswith("-") or word in VERBS]
    given = dict.fromkeys(flags, "")
    for word in [*tiny_files.overrides, *words]:
        if word not in flags:
            key, _, value = word.partition("=")
            given[key] = value
    if given["dataset"] == "shipped" or "dataset.path" not in line:
        given["num_prompts"] = "1"
    arguments = [f"{k}={v}" if k not in flags else k for k, v in given.items()]
    ended = command(*arguments, tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    left = [VERBS[flag] for flag in flags if flag in VERBS] or ["outputs/*/*/DONE"]
    assert all(list(workplace.glob(pattern)) for pattern in left)


@pytest.mark.parametrize(("sweep", "collect"), COLLECTED)
def test_a_sweep_is_collected_as_the_readme_says(
    sweep, collect, command, workplace
) -> None:
    assert command(*shlex.split(sweep)[1:], "num_prompts=1").code == 0
    ended = command(*shlex.split(collect)[1:], tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    assert "4 jobs: 4 done, 0 failed, 0 missing" in ended.out
    assert (workplace / shlex.split(collect)[2] / "sweep.parquet").is_file()


@pytest.mark.parametrize("line", CHECKS)
def test_parts_are_checked_as_the_readme_says(line, command, workplace) -> None:
    ended = command(*shlex.split(line)[1:], tiny=False)
    assert (ended.code, ended.errors) == (0, [])
    assert ended.out.startswith("ok ")


def test_ci_runs_the_very_test_command_of_the_readme() -> None:
    (line,) = (line for line in SETUP if "pytest" in line)
    command = line.partition("#")[0].strip()
    assert command in (ROOT / ".ci/run").read_text().splitlines()


def test_the_table_of_rules_has_every_rule_and_what_it_takes() -> None:
    section = README.partition("### Which rule for which tree")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
    options = {path.stem for path in (ROOT / "conf/acceptance").glob("*.yaml")}
    assert set(dict(rows)) == options - {"custom"}
    for name, takes in rows:
        text = (ROOT / f"conf/acceptance/{name}.yaml").read_text(encoding="utf-8")
        (target,) = re.findall(r"^_target_: treespec\.acceptance\.(\w+)$", text, re.M)
        rule = getattr(acceptance, target)()
        told = {kind for kind in ProposalKind if kind in takes.split("`")}
        several = {kind for kind, most in rule.proposals.items() if most != 1}
        if "any tree" in takes:
            assert rule.proposals == ANY_PROPOSAL
        elif takes == "one drawn child per node":
            assert not several
        else:
            assert told == several
        assert ("lossy" in takes) != rule.lossless
