"""A few trees of a run, chosen by no one."""

import re

from tests.outcomes import make_outcome, make_result, make_steps
from tests.sinks.runs import make_run
from treespec.analysis.pictures import TreePictures
from treespec.outcome import PromptOutcome
from treespec.types import NodeTrace


def traced(name, drafted_at):
    """A prompt of six steps, of which some drafted a node."""
    traces = tuple(
        NodeTrace(step, 1, 0, 1, 0, 11, "draft", 0.5, 0.5, "accepted", 0.5)
        for step in drafted_at
    )
    fast = make_result(make_steps((1,) * 6, (1,)), traces=traces)
    return PromptOutcome(name, "qa", fast, fast, "identical")


def test_the_middle_step_that_drafted_is_drawn(tmp_path):
    run = make_run(tmp_path)
    (picture,) = TreePictures()(run, [traced("a\x07", (0, 3, 4, 5))])
    assert re.fullmatch(r"Step 3 of prompt a\S+", picture.title)
    assert "\x07" not in picture.title
    assert picture.svg.startswith("<svg ")


def test_prompts_lie_evenly_over_the_run(tmp_path):
    outcomes = [traced(f"p{number}", (0,)) for number in range(30)]
    pictures = TreePictures(max_prompts=3)(make_run(tmp_path), outcomes)
    assert [p.title.split()[-1] for p in pictures] == ["p0", "p10", "p20"]


def test_a_run_without_traces_has_no_pictures(tmp_path, monkeypatch):
    """And no tokenizer is read for them, which takes a second."""
    monkeypatch.setattr("treespec.analysis.pictures.find_words", None)
    assert TreePictures()(make_run(tmp_path), [make_outcome("a")]) == []
    assert TreePictures()(make_run(tmp_path), []) == []
