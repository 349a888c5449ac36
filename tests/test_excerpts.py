import json
from pathlib import Path

import pytest

from treespec.errors import TreespecError
from treespec.excerpts import LEAST, PIECE, Excerpt, read_excerpts

LONG = "The harbour is quiet in the morning, and the boats lie still. " * 5


def jsonl(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_is_cut_at_line_ends_and_nothing_is_lost(tmp_path: Path) -> None:
    text = "".join(f"line {number} of the file\n" for number in range(400))
    (tmp_path / "a.txt").write_text(text)
    found = read_excerpts([str(tmp_path / "a.txt")], 100)
    assert "".join(excerpt.text for excerpt in found) == text
    assert all(e.text.endswith("\n") and len(e.text) <= PIECE for e in found)


def test_of_many_texts_a_few_are_taken_spread_evenly(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number}", "answer": LONG} for number in range(9)]
    found = read_excerpts([jsonl(tmp_path / "a.jsonl", *rows)], 3)
    assert [excerpt.turns for excerpt in found] == [("0",), ("3",), ("6",)]


def test_answers_follow_their_turns_and_earlier_ones_stand_before(
    tmp_path: Path,
) -> None:
    row = {"id": "1", "turns": ["first", "second"], "reference": [LONG, "short"]}
    path = jsonl(tmp_path / "a.jsonl", row)
    line = f"{path}, line 1"
    assert read_excerpts([path], 9) == [
        Excerpt(f"{line}, turn 1", line, ("first",), LONG),
        Excerpt(f"{line}, turn 2", line, ("first", LONG, "second"), "short"),
    ]


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    """Its texts once made the interval half as wide."""
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "a", "answer": LONG})
    assert len(read_excerpts([path, path], 9)) == 1


def test_without_answers_the_messages_are_the_text(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"turns": [LONG], "reference": None})
    line = f"{path}, line 1"
    assert read_excerpts([path], 9) == [Excerpt(line, line, (), LONG)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "is empty"),
        ("a.txt", b"  \n ", "is empty"),
        ("a.txt", b"too short", f"9 characters in .*; give at least {LEAST}"),
        ("a.txt", b"\xff\xfe\x00a" * 99, "is not UTF-8 text"),
        ("a.txt", b"abc\0" * 99, "is binary"),
        ("a.jsonl.gz", b"abc" * 99, "cannot read .*Not a gzipped file"),
        ("a.jsonl", b"{", "line 1: not JSON"),
        ("a.jsonl", b"[]", "line 1: must be an object"),
        ("a.jsonl", b'{"text": "a"}', r"line 1: needs turns .*\['text'\]"),
    ],
)
def test_what_is_no_text_is_refused_by_name(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TreespecError, match=words) as caught:
        read_excerpts([str(tmp_path / name)], 9)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TreespecError, match="must be a file, not a folder"):
        read_excerpts([str(tmp_path)], 9)
    with pytest.raises(TreespecError, match="does not exist"):
        read_excerpts([str(tmp_path / "none")], 9)
