"""Each measure against values that are known by hand or from its own package."""

import random
import re

import numpy as np
import pytest

from treespec.datasets.base import CodeTest, Prompt
from treespec.errors import TreespecError
from treespec.measures import Bleu, ExactAnswer, PassAtOne, RougeL, base
from treespec.measures.exact_answer import final_number
from treespec.measures.pass_at_one import program_of
from treespec.measures.rouge import rouge_l
from treespec.scores import pooled

MEASURES = (Bleu(), RougeL(), ExactAnswer(), PassAtOne(execute_code=True))


def asked(reference, turns=("Why?",), **more):
    return Prompt("p", "qa", tuple(turns), reference=reference, **more)


@pytest.mark.parametrize("seed", range(40))
def test_bleu_of_sums_is_sacrebleus_corpus_bleu(seed):
    """Few words, short and empty texts: all cases of smoothing and brevity occur."""
    metrics = pytest.importorskip("sacrebleu.metrics")
    chance = random.Random(seed)
    words = "a b c d e f g".split()[: chance.randint(2, 7)]

    def text(least):
        return " ".join(chance.choice(words) for _ in range(chance.randint(least, 12)))

    texts = [text(0) for _ in range(chance.randint(1, 5))]
    references = [(text(1), text(1)) for _ in texts]
    rows = [
        Bleu().parts(asked([list(pair)]), 1, made)
        for made, pair in zip(texts, references, strict=True)
    ]
    expected = metrics.BLEU().corpus_score(texts, list(zip(*references, strict=True)))
    found = pooled(np.sum(rows, axis=0), "bleu")
    assert float(found) == pytest.approx(expected.score, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        # Values of the package rouge-score 0.1.2 (rougeL, without stemming).
        ("the cat sat on the mat", "the cat is on the mat", 10 / 12),
        ("police killed the gunman", "police kill the gunman", 0.75),
        ("the gunman kill police", "police kill the gunman", 0.5),
        ("The CAT, sat!", "the cat sat", 1.0),
        ("", "the cat", 0.0),
        ("...", "the cat", 0.0),
        ("b a", "a b", 0.5),
    ],
)
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(text, reference, expected):
    assert rouge_l(text, reference) == pytest.approx(expected)
    assert rouge_l(reference, text) == pytest.approx(expected)


def test_letters_of_all_languages_are_letters():
    """rouge-score cuts words at every letter that is not English."""
    assert rouge_l("la forêt", "la fort") == 0.5


def test_of_several_references_the_best_counts():
    prompt = asked([["no", "it is so", "yes"]])
    assert RougeL().parts(prompt, 1, "it is so") == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7 apples.", 7),
        ("7 apples, of 12\n#### 7", 7),
        ("#### 1,234", 1234),
        ("It costs $1,250.50.", 1250.5),
        ("#### 7.00", 7),
        ("a loss: -3", -3),
        ("#### 5\n#### 7 of 9", 7),
        ("none", None),
        ("7\n#### none", None),
    ],
)
def test_an_answer_comes_to_its_final_number(text, number):
    assert final_number(text) == number


def test_exact_answer_judges_only_what_has_a_number_to_find():
    measure = ExactAnswer()
    for reference, applies in (
        ("3 and 4 make 7\n#### 7", True),
        ("108", True),
        ("6 euros", False),
        (None, False),
        ({"answer": 7}, False),
    ):
        assert measure.applies(asked(reference), 1) == applies
    assert measure.parts(asked("108"), 1, "... = 108.") == (1.0, 1.0)
    assert measure.parts(asked("108"), 1, "... = 107.") == (0.0, 1.0)


def test_references_belong_to_turns():
    talk = asked(["one", ["two", "zwei"]], turns=("a", "b"))
    assert (talk.references(1), talk.references(2)) == (("one",), ("two", "zwei"))
    last = asked("end", turns=("a", "b"))
    assert (last.references(1), last.references(2)) == ((), ("end",))
    assert asked(["x", "y", ""]).references(1) == ("x", "y")


TEST = CodeTest(
    prompt='def twice(x):\n    """Double."""\n',
    test="def check(candidate):\n    assert candidate(2) == 4\n",
    entry_point="twice",
)
RIGHT = "    return 2 * x\n\n\ndef other():\n    1 / 0\n\n\nother()"


@pytest.mark.parametrize(
    ("text", "chat", "passed"),
    [
        (RIGHT, False, 1.0),
        ("    return 3 * x\n", False, 0.0),
        ("    return (\n        2 * x\n)\n", False, 1.0),
        ("    return 2 * x\n# done\nraise SystemExit", False, 1.0),
        ("", False, 0.0),
        ("Sure!\n```python\ndef twice(x):\n    return x + x\n```\nDone.", True, 1.0),
        ("```\ndef twice(x):\n    return x + x", True, 1.0),
        ("def twice(x):\n    return x + x", True, 1.0),
        ("I cannot.", True, 0.0),
    ],
)
def test_pass_at_1_runs_the_tests(text, chat, passed):
    prompt = asked(None, chat=chat, code_test=TEST)
    assert PassAtOne(execute_code=True).parts(prompt, 1, text) == (passed, 1.0)


def test_a_task_that_breaks_off_in_a_signature_takes_the_whole_answer():
    broken = CodeTest("def twice(x):\n", TEST.test, "twice")
    program = program_of(broken, "```python\ndef twice(x):\n    pass\n```", chat=True)
    compile(program, "program", "exec")
    assert program.count("def twice") == 1


def test_equal_texts_are_judged_once(monkeypatch):
    judged = []
    measure = RougeL()
    monkeypatch.setattr(
        RougeL, "parts", lambda self, *given: judged.append(given) or (1.0, 1.0)
    )
    measure.score(asked("yes"), 1, "same", "same")
    assert len(judged) == 1
    measure.score(asked("yes"), 1, "same", "other")
    assert len(judged) == 3


def test_without_the_permission_nothing_is_run():
    with pytest.raises(TreespecError, match=r"give execute_code=true") as error:
        PassAtOne().check()
    assert "\n" not in str(error.value)
    PassAtOne(execute_code=True).check()


def test_a_sandbox_in_which_nothing_works_is_found_out():
    with pytest.raises(TreespecError, match=r"sound code fails in the sandbox"):
        PassAtOne(execute_code=True, timeout_s=1e-9, memory_mb=64).check()


def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    with pytest.raises(TreespecError, match=r"treespec\[eval\]") as error:
        Bleu().check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("measure", [Bleu, RougeL, ExactAnswer, PassAtOne])
@pytest.mark.parametrize("margin", [0, -1, 1000, "much", True])
def test_a_margin_that_is_none_is_refused(measure, margin):
    key = re.escape(f"quality.{measure.name}.margin")
    with pytest.raises(TreespecError, match=key):
        measure(margin=margin)
