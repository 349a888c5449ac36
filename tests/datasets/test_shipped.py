"""The shipped prompts show both sides of speculation."""

from collections import Counter

from treespec.datasets.shipped import ShippedDataset

CATEGORIES = (
    "summarization",
    "editing",
    "question_answering",
    "extraction",
    "translation",
    "math",
    "story",
    "chat",
    "code",
)
FIRST = {
    "summarization": 3,
    "editing": 4,
    "question_answering": 3,
    "extraction": 3,
    "translation": 2,
    "math": 2,
    "story": 2,
    "chat": 2,
}
"""How many there were at first: runs of then name them."""


def test_every_kind_of_task_has_eight_prompts():
    prompts = ShippedDataset().load(None)
    counts = Counter(prompt.category for prompt in prompts)
    assert tuple(counts) == CATEGORIES
    assert set(counts.values()) == {8}


def test_ids_are_the_category_and_a_number_and_the_first_ones_stay():
    ids = [prompt.id for prompt in ShippedDataset().load(None)]
    assert ids == [f"{name}/{number}" for name in CATEGORIES for number in range(1, 9)]
    assert {f"{k}/{n}" for k, count in FIRST.items() for n in range(1, count + 1)} < {
        *ids
    }


def test_nine_shipped_prompts_are_one_of_each_kind_and_the_first_run_has_two():
    for count in (1, 2):
        prompts = ShippedDataset().load(9 * count)
        assert set(Counter(p.category for p in prompts).values()) == {count}


def test_shipped_prompts_are_short_enough_for_a_first_run():
    for prompt in ShippedDataset().load(None):
        assert len(prompt.turns) == 1
        assert len(prompt.turns[0].split()) <= 130


def test_shipped_prompts_differ_from_each_other():
    turns = [prompt.turns[0] for prompt in ShippedDataset().load(None)]
    assert len(set(turns)) == len(turns)


def test_what_has_one_good_answer_comes_with_it():
    """Quality needs references: where an answer is free there are none."""
    for prompt in ShippedDataset().load(None):
        if prompt.category in {"summarization", "question_answering", "translation"}:
            assert len(prompt.references(1)) == 1, prompt.id
        if prompt.category == "math":
            (reference,) = prompt.references(1)
            assert float(reference) > 0
        if prompt.category in {"story", "chat"}:
            assert prompt.references(1) == ()
