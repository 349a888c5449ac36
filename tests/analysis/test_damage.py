"""Whatever became of a run's files, both readers say so in one line or read them."""

import json
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

from tests.analysis.conftest import full_outcomes, write_run
from tests.analysis.traced import drawn_outcome, save_run
from treespec.analysis import load_results
from treespec.analysis.viewer import view
from treespec.errors import TreespecError

FILES = (
    "config.yaml",
    "env.json",
    "nodes.parquet",
    "prompts.jsonl",
    "status.json",
    "steps.parquet",
    "summary.json",
)
DAMAGES = {
    "missing": None,
    "empty": b"",
    "no text": bytes(range(256)) * 9,
    "null": b"null\n",
}
WRONG = ("x\n\x1b[31m", 10**30, -(10**12), True, float("nan"), [1, "x"], {"a": 1}, None)
NUM_MUTATIONS = 120


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    config = {"trace": "nodes", "seed": 1}
    return write_run(folder, "k1", full_outcomes(), **config)


def readers(folder: Path):
    """Return each way to read a run, by name."""
    return {
        "load_results": lambda: load_results(folder),
        "view": lambda: view([str(folder), "format=text", "step=0"]),
        "page": lambda: view([str(folder)]),
    }


def told(read) -> str | None:
    """Return what a reader says; ``None`` if it has read the run."""
    try:
        read()
    except TreespecError as error:
        message = str(error)
        assert message.isprintable()
        return message
    return None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_finished_run_that_is_damaged_is_named(
    finished, tmp_path, name, damage
):
    """Rows were dropped in silence where a finished run had lost some of its lines."""
    folder = shutil.copytree(finished, tmp_path / "k1")
    (folder / name).unlink()
    if DAMAGES[damage] is not None:
        (folder / name).write_bytes(DAMAGES[damage])
    for reader, read in readers(folder).items():
        message = told(read)
        assert message is not None, reader
        assert str(folder) in message


def test_half_of_the_prompts_of_a_finished_run_are_not_taken_for_all(
    finished, tmp_path
):
    folder = shutil.copytree(finished, tmp_path / "k1")
    lines = (folder / "prompts.jsonl").read_text().splitlines(keepends=True)
    for kept in ("".join(lines[:3]), "".join(lines)[:-40]):
        (folder / "prompts.jsonl").write_text(kept)
        with pytest.raises(TreespecError, match=r"whole lines, but the run had 7"):
            load_results(folder)


def leaves(tree, path=()):
    """Return the places of all values in nested objects and lists."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))


def replaced(tree, place, value):
    *above, last = place
    part = tree
    for key in above:
        part = part[key]
    part[last] = value
    return tree


@pytest.mark.parametrize(
    "name", ["prompts.jsonl", "summary.json", "status.json", "env.json", "config.yaml"]
)
def test_a_wrong_value_anywhere_is_told_or_does_not_matter(finished, tmp_path, name):
    """Arrow, the tokenizer and tuple unpacking told of it in their own words."""
    folder = shutil.copytree(finished, tmp_path / "k1")
    path, luck = folder / name, random.Random(name)
    first, *rest = path.read_text().splitlines(keepends=True)
    is_lines = name.endswith("jsonl")
    if name == "config.yaml":
        whole = {"seed": 1, "trace": "nodes", "controller": {"max_depth": 2}}
        whole |= {"policy": {"_target_": "a.B"}, "pair": {"target": {"path": "x"}}}
    else:
        whole = json.loads(first if is_lines else "".join([first, *rest]))
    places = list(leaves(whole))
    seen = set()
    for _ in range(NUM_MUTATIONS if len(places) > 20 else 40):
        place, value = luck.choice(places), luck.choice(WRONG)
        broken = json.dumps(replaced(json.loads(json.dumps(whole)), place, value))
        path.write_text(broken + "\n" + "".join(rest if is_lines else ()))
        for read in readers(folder).values():
            seen.add(told(read) is None)
    if name in ("prompts.jsonl", "summary.json"):
        assert seen == {True, False}


def test_a_page_replaces_no_device(tmp_path):
    """``output=/dev/null`` of an administrator made a file of the device."""
    folder = save_run(tmp_path, [drawn_outcome()])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    view([str(folder), f"output={pipe}"])
    reader.join(timeout=20)
    assert pipe.is_fifo()
    assert read[0].startswith("<!doctype html>")
    with pytest.raises(TreespecError, match="output: must be a file"):
        view([str(folder), "output="])
