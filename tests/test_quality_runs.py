"""Quality from the command line: asked in the configuration, told in the summary."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = {
    "category": "code",
    "turns": ["def f(x):\n"],
    "chat": False,
    "reference": "    return x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 1\n",
    "entry_point": "f",
}
LOSSY = ("acceptance=typical_acceptance", "sampling=temperature", "policy=top_k_tree")


@pytest.fixture
def prompts(tmp_path):
    rows = [
        {"id": "sum", "category": "math", "turns": ["what"], "reference": "7"},
        {"id": "word", "category": "qa", "turns": ["who"], "reference": "a b c"},
        {**CODE, "id": "code"},
        {"id": "free", "category": "story", "turns": ["tell"]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"dataset.path={path}"


def test_all_measures_stand_beside_the_speed_up(command, read_runs, prompts):
    pytest.importorskip("sacrebleu")
    names = "quality=[bleu,rouge_l,exact_answer,pass_at_1]"
    ended = command(prompts, names, "execute_code=true", *LOSSY)
    assert (ended.code, ended.errors) == (0, [])
    assert "runs code that the model wrote" in ended.err
    (run,) = read_runs()
    quality = run.summary["quality"]
    counts = {name: found["num_texts"] for name, found in quality.items()}
    assert counts == {"bleu": 3, "rouge_l": 3, "exact_answer": 1, "pass_at_1": 1}
    for found in quality.values():
        assert found["difference"] == pytest.approx(
            found["speculative"] - found["baseline"]
        )
    assert "rouge_l" in ended.out
    assert "too few prompts" in " ".join(ended.out.split())


def test_without_being_asked_there_is_no_quality(command, read_runs, prompts):
    assert command(prompts).code == 0
    (run,) = read_runs()
    assert run.summary["quality"] == {}
    assert run.summary["exact_match"] == 1.0


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["quality=pass_at_1"], "give execute_code=true to allow it"),
        (["quality=pass_at_1", "execute_code=1"], "execute_code must be true or false"),
        (["execute_code=maybe"], "execute_code must be true or false"),
        (
            ["quality=rouge_l", "quality.rouge_l.margin=2"],
            "quality.rouge_l.margin must be",
        ),
        (["quality=nothing"], "quality"),
        (["quality=rouge_l", "quality.rouge_l.order=2"], "quality.rouge_l.order"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_decoded(
    command, prompts, tmp_path, overrides, says
):
    ended = command(prompts, *overrides)
    assert ended.code == 2
    (error,) = ended.errors
    assert says in error
    assert not (tmp_path / "outputs").exists()


def test_a_permission_is_typed_and_no_file_gives_it(command, read_runs, prompts):
    """A saved config.yaml, one's own or another's, once ran model-written code."""
    asked = ("quality=pass_at_1", "num_prompts=3")
    assert command(prompts, *asked, "execute_code=true").code == 0
    (run,) = read_runs()
    again = ("--config-path", str(run.folder), "sweep_name=again", "max_new_tokens=3")
    refused = command(*again, tiny=False)
    assert refused.code == 2
    (error,) = refused.errors
    assert "is allowed by the command alone: type execute_code=true" in error
    denied = command(*again, "execute_code=false", tiny=False)
    assert denied.code == 2, "to say no once was permission enough"
    assert command(*again, "execute_code=true", tiny=False).code == 0


def test_a_measure_that_no_prompt_can_be_judged_by_is_refused(command, tmp_path):
    ended = command("quality=pass_at_1", "execute_code=true")
    assert ended.code == 2
    assert "quality.pass_at_1 needs a test" in ended.errors[0]
    assert "none of the 3 prompts has it" in ended.errors[0]


@pytest.mark.parametrize("group", ["dataset", "quality"])
def test_every_option_composes_and_builds(command, group, tmp_path, tiny_files):
    """What needs a network is given a file of its form."""
    row = {
        "question": "3 + 4?", "answer": "#### 7", "question_id": 1, "id": "1",
        "task_id": "1", "prompt": "def f(x):\n", "canonical_solution": "    pass\n",
        "category": "math", "turns": ["what"], "reference": "7",
        "test": "def check(candidate):\n    pass\n", "entry_point": "f",
    }  # fmt: skip
    path = tmp_path / "row.jsonl"
    path.write_text(json.dumps(row) + "\n")
    options = {file.stem for file in (ROOT / "conf" / group).glob("*.yaml")}
    shipped = {"shipped", "article_tasks", "six_kinds"}  # too long for the tiny model
    for option in sorted(options - shipped):
        ended = command(
            f"{group}={option}",
            f"dataset.path={path}",
            "execute_code=true",
            "max_new_tokens=2",
        )
        assert (ended.code, ended.errors) == (0, []), option
