"""Whatever a file has become, it is told in one line that names it."""

import json
from pathlib import Path

import pytest

from treespec.errors import NumericalError, TreespecError
from treespec.files import read_json, read_text, read_yaml, write_json

WAY_OUT = "write it anew"


def told(read, path: Path) -> str:
    with pytest.raises(TreespecError) as refused:
        read(path, WAY_OUT)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    assert message.endswith(f"; {WAY_OUT}")
    return message


@pytest.mark.parametrize("read", [read_text, read_json, read_yaml])
def test_what_is_not_there_or_no_text_is_told(tmp_path: Path, read) -> None:
    assert "cannot be read: No such file" in told(read, tmp_path / "none")
    assert "cannot be read: Is a directory" in told(read, tmp_path)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert "cannot be read: it is no text" in told(read, tmp_path / "bytes")


@pytest.mark.parametrize("content", ["", '{"a": ', "\0", "[" * 100_000, "9" * 5000])
def test_what_is_no_json_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert "not JSON" in told(read_json, tmp_path / "a.json")


@pytest.mark.parametrize("content", ["a: [", "\0", "a: b: c", "? 2001-02-31"])
def test_what_is_no_yaml_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.yaml").write_text(content)
    assert "not YAML" in told(read_yaml, tmp_path / "a.yaml")


@pytest.mark.parametrize("content", ["[1]", "1", '"a"', "null"])
def test_what_holds_no_names_is_told(tmp_path: Path, content: str) -> None:
    (tmp_path / "a").write_text(content)
    assert "must hold one JSON object" in told(read_json, tmp_path / "a")
    assert "must hold keys and values" in told(read_yaml, tmp_path / "a")


def test_a_way_out_is_named_only_if_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(TreespecError, match=r"No such file or directory$"):
        read_text(tmp_path / "none")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None], "b": {"ü": "\n"}}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    assert read_yaml(tmp_path / "a.json") == content


def test_a_number_that_is_none_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A reader elsewhere takes no NaN, and half a file is worse than an old one."""
    write_json(tmp_path / "a.json", {"a": 1})
    broken = {"a": 1, "b": [{"c": [0.5, float("nan")]}, float("inf")]}
    with pytest.raises(NumericalError, match=r"^b\.0\.c\.1 is nan, but only finite"):
        write_json(tmp_path / "a.json", broken)
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
