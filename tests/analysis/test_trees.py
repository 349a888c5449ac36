"""From records to trees, and from trees to text and pictures."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.analysis.traced import SMALL, Drawn, drawn_result
from treespec.analysis.trees import step_trees
from treespec.analysis.trees_svg import step_svg
from treespec.analysis.trees_text import probability, step_text
from treespec.errors import TreespecError

GOLDEN = Path(__file__).with_name("step.svg")


def label(token):
    return f"t{token}"


def trees(steps=SMALL, **changes):
    return step_trees(drawn_result(steps, **changes))


def test_the_token_of_the_target_hangs_below_the_last_accepted_node():
    bonus, recovered, alone, _ = trees()
    assert bonus.parents == (-1, 0, 0, 1, 1, 3)
    assert bonus.kinds[-1] == "bonus"
    assert bonus.tokens == (4, 5, 6, 7, 8, 9)
    assert recovered.parents == (-1, 0, 1, 0)
    assert recovered.kinds == ("root", "rejected", "unreached", "recovered")
    assert (alone.parents, alone.tokens) == ((-1, 0), (12, 4))


def test_a_cut_step_has_no_token_of_the_target():
    cut = trees()[-1]
    assert cut.kinds == ("root", "accepted", "cut", "rejected")
    assert cut.on_path == {0, 1}


def test_the_path_of_a_step_is_the_text():
    result = drawn_result(SMALL)
    text = list(result.tokens[:1])
    for tree in step_trees(result):
        assert tree.tokens[0] == text[-1], "the root is the last committed token"
        text += [tree.tokens[node] for node in sorted(tree.on_path - {0})]
    assert tuple(text) == result.tokens


@pytest.mark.parametrize(
    ("lost", "message"),
    [(0, "step 0: its traces are not those of a tree"), (3, None)],
)
def test_a_lost_trace_is_told(lost, message):
    result = drawn_result(SMALL[:1])
    torn = replace(
        result,
        traces=result.traces[:lost] + result.traces[lost + 1 :],
        tokens=result.tokens,
    )
    if message is None:
        assert len(step_trees(torn)[0].traces) == 3
        return
    with pytest.raises(TreespecError, match=message):
        step_trees(torn)


def test_more_committed_than_there_is_text_is_told():
    result = drawn_result(SMALL)
    with pytest.raises(TreespecError, match="committed more tokens than there are"):
        step_trees(replace(result, tokens=result.tokens[:2]))


def test_a_step_reads_as_an_outline():
    changes = {"reason": "lookup", "expected_accepted": 1.25, "expected_s": 0.009}
    assert (
        step_text(trees(SMALL[:1], **changes)[0], label)
        == """\
step 0: 2 of 4 drafted nodes accepted, 3 tokens committed
  10 ms: draft 2 ms, plan 0 ms, verify 7 ms, accept 0.2 ms, commit 0.3 ms, other 0.5 ms
  budget: depth 2, width 2, nodes 4 (by constant)
  lookup, 1.25 accepted expected, 9 ms expected
   draft   target  rank  source
                                 ●  t4
   0.500    0.250     0  draft   ✓  ├─ t5
   0.500    0.250     0  draft   ✓  │  ├─ t7
                                 ★  │  │  ╰─ t9 (bonus)
   0.500    0.250     1  lookup  ✗  │  ╰─ t8
   0.500    0.250     1  lookup  ✗  ╰─ t6"""
    )


def test_a_step_without_drafts_reads_too():
    assert step_text(trees()[2], label).splitlines()[-2:] == [
        "                                 ●  t12",
        "                                 ★  ╰─ t4 (bonus)",
    ]


@pytest.mark.parametrize(
    ("prob", "text"),
    [(0.0, "0.000"), (1.0, "1.000"), (0.0009, "9e-04"), (0.001, "0.001")],
)
def test_a_small_probability_is_not_zero(prob, text):
    assert probability(prob) == text


def test_a_step_is_a_small_picture():
    svg = step_svg(trees((Drawn((0, 0), (5, 6), (1,), 7),))[0], label, "Step <0>")
    assert svg == GOLDEN.read_text(encoding="utf-8")


def test_a_picture_is_xml_whatever_the_tokens():
    svg = step_svg(trees()[0], lambda _: "</script>&\"'<img>", "a < b")
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "✓ </script>&\"'<img>" in texts
    assert root[0].text == "a < b"


def test_kinds_of_nodes_differ_without_colours():
    """By thicker lines (accepted), dashes (unreached, cut), and all by signs."""
    svg = step_svg(trees()[1], label, "") + step_svg(trees()[3], label, "")
    for drawn in (
        'stroke-width="2.4"',
        'dasharray="3 3"',
        'dasharray="1 3"',
        "✗ t",
        "· t",
    ):
        assert drawn in svg
