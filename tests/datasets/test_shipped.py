"""The shipped prompts show both sides of speculation."""

from treespec.datasets.shipped import ShippedDataset


def test_shipped_prompts_mix_tasks_that_copy_with_tasks_that_do_not():
    prompts = ShippedDataset().load(None)
    assert 16 <= len(prompts) <= 24
    categories = {prompt.category for prompt in prompts}
    assert {"editing", "extraction", "summarization"} < categories
    assert {"story", "chat", "translation"} < categories


def test_eight_shipped_prompts_are_one_of_each_kind():
    prompts = ShippedDataset().load(8)
    assert len({prompt.category for prompt in prompts}) == 8


def test_shipped_prompts_are_short_enough_for_a_first_run():
    for prompt in ShippedDataset().load(None):
        assert len(prompt.turns) == 1
        assert len(prompt.turns[0].split()) <= 130
