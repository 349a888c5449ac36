"""A few prompts stand for all kinds, and always the same few."""

import pytest

from treespec.datasets.base import Prompt, choose, prompt_id, turn_id
from treespec.errors import TreespecError

KINDS = ["qa", "qa", "qa", "story", "story", "chat"]
PROMPTS = [Prompt(str(i), kind, ("text",)) for i, kind in enumerate(KINDS)]


def _ids(num_prompts):
    return [prompt.id for prompt in choose(PROMPTS, num_prompts)]


def test_few_prompts_cover_all_categories():
    assert _ids(3) == ["0", "3", "5"]
    assert _ids(4) == ["0", "1", "3", "5"]


def test_more_prompts_contain_the_fewer():
    for fewer in range(1, len(PROMPTS)):
        assert set(_ids(fewer)) < set(_ids(fewer + 1))


def test_null_takes_all_in_file_order():
    assert choose(PROMPTS, None) == PROMPTS


def test_asking_for_more_than_there_are_takes_all_and_says_so(caplog):
    assert choose(PROMPTS, 100) == PROMPTS
    assert "num_prompts=100" in caplog.text
    assert "all 6" in caplog.text


@pytest.mark.parametrize("num_prompts", [0, -1])
def test_asking_for_none_is_refused(num_prompts):
    with pytest.raises(TreespecError, match="num_prompts must be >= 1"):
        choose(PROMPTS, num_prompts)


@pytest.mark.parametrize("name", ["81", "math/1", "a/2"])
@pytest.mark.parametrize("turn", [1, 2, 12])
def test_the_name_of_a_turn_leads_back_to_its_prompt(name, turn):
    """``math/1`` once lost its number: it looked like a first turn's."""
    assert prompt_id(turn_id(name, turn), turn) == name
