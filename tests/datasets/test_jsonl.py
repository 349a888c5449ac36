"""Every malformed line is named, with what was expected."""

import gzip
import json

import pytest

from treespec.datasets.base import Prompt
from treespec.datasets.jsonl import JsonlDataset
from treespec.errors import TreespecError

GOOD = {"id": "a", "category": "qa", "turns": ["Why?"]}


@pytest.fixture
def write(tmp_path):
    def write_lines(*rows):
        path = tmp_path / "prompts.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path.write_text("\n".join(lines))
        return str(path)

    return write_lines


def test_rows_become_prompts_and_other_keys_are_left_alone(write):
    path = write(
        GOOD,
        "",
        {**GOOD, "id": "b", "turns": ["x", "y\u2028z"], "reference": "r", "source": 3},
        {**GOOD, "id": "c", "chat": False, "reference": None},
        {**GOOD, "id": "d", "reference": [["r"], ["s"]]},
    )
    assert JsonlDataset(path).load(None) == [
        Prompt("a", "qa", ("Why?",)),
        Prompt("b", "qa", ("x", "y\u2028z"), reference="r"),
        Prompt("c", "qa", ("Why?",), chat=False),
        Prompt("d", "qa", ("Why?",), reference=[["r"], ["s"]]),
    ]


def test_compressed_files_read_the_same(write, tmp_path):
    path = write(GOOD)
    packed = tmp_path / "prompts.jsonl.gz"
    with gzip.open(packed, "wt", encoding="utf-8") as file:
        file.write((tmp_path / "prompts.jsonl").read_text())
    assert JsonlDataset(str(packed)).load(1) == JsonlDataset(path).load(1)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(GOOD), encoding="utf-8-sig")
    assert JsonlDataset(str(path)).load(None)[0].id == "a"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{not json", "not JSON"),
        ("[1]", "must be an object"),
        ({**GOOD, "id": 7}, "id must be a text, got 7"),
        ({"category": "qa", "turns": ["x"]}, "id must be a text, got None"),
        ({"id": "b", "turns": ["x"]}, "category must be a text"),
        ({**GOOD, "id": "b", "turns": "Why?"}, "turns must be a list"),
        ({**GOOD, "id": "b", "turns": []}, "turns must be a list"),
        ({**GOOD, "id": "b", "turns": ["x", 3]}, "turns must be a list"),
        ({**GOOD, "id": "b", "turns": [""]}, "turns must be a list"),
        ({**GOOD, "id": "b", "chat": "no"}, "chat must be true or false, got 'no'"),
        ({**GOOD, "id": "b", "chat": False, "turns": ["x", "y"]}, "takes one turn"),
        (GOOD, "id 'a' was already used in line 1"),
    ],
)
def test_a_malformed_line_is_named(write, row, complaint):
    with pytest.raises(TreespecError) as error:
        JsonlDataset(write(GOOD, row)).load(None)
    assert "dataset.path: " in str(error.value)
    assert "line 2" in str(error.value)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_a_folder_and_an_empty_file_are_told_apart(tmp_path, write):
    for path, complaint in (
        (str(tmp_path / "absent.jsonl"), "does not exist"),
        (str(tmp_path), "must be a file"),
        (write(""), "holds no prompts"),
    ):
        with pytest.raises(TreespecError, match=complaint) as error:
            JsonlDataset(path).load(None)
        assert "dataset.path" in str(error.value)


@pytest.mark.parametrize(
    "content", [b"not gzip at all", gzip.compress(b"{}" * 999, mtime=0)[:-9]]
)
def test_a_broken_compressed_file_is_refused(tmp_path, content):
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(TreespecError, match=r"dataset\.path: cannot read"):
        JsonlDataset(str(path)).load(None)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TreespecError, match="UTF-8"):
        JsonlDataset(str(path)).load(None)
