import pytest

from treespec.compose import compose_job
from treespec.datasets.of_categories import OfCategories
from treespec.datasets.shipped import ShippedDataset
from treespec.errors import TreespecError


def test_only_the_named_kinds_of_task_are_given():
    dataset = OfCategories(ShippedDataset(), ["chat", "summarization"])
    prompts = dataset.load(4)
    assert [prompt.category for prompt in prompts].count("chat") == 2
    assert {prompt.category for prompt in dataset.load(None)} == {
        "chat",
        "summarization",
    }


def test_an_unknown_kind_of_task_is_refused():
    with pytest.raises(TreespecError, match="Did you mean 'chat'"):
        OfCategories(ShippedDataset(), ["chatt"]).load(None)
    with pytest.raises(TreespecError, match=r"dataset\.categories must be a list"):
        OfCategories(ShippedDataset(), "chat")
    with pytest.raises(TreespecError, match=r"dataset\.dataset must be a dataset"):
        OfCategories("shipped", ["chat"])


def test_the_articles_tasks_are_among_the_shipped_prompts():
    job = compose_job(["dataset=article_tasks"])
    assert {prompt.category for prompt in job.prompts} == {
        "code",
        "chat",
        "summarization",
    }


def test_six_kinds_are_one_prompt_of_each_if_six_are_asked_for():
    job = compose_job(["dataset=six_kinds", "num_prompts=6"])
    assert {prompt.category for prompt in job.prompts} == {
        *("code", "math", "chat", "story", "question_answering", "translation"),
    }
    assert len(job.prompts) == 6
