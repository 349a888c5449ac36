"""A prompt begins with BOS once, however the template and the text spell it."""

import pytest

from tests.tiny import BOS_ID, CHAT_TEMPLATE, EOS_ID, tiny_tokenizer
from treespec.errors import TreespecError
from treespec.models.tokenizer import HuggingFaceTokenizer

TURNS = [{"role": "user", "content": "hi"}]


def with_template(template: str | None) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(tiny_tokenizer(chat_template=template), BOS_ID)


@pytest.mark.parametrize(
    "template", [CHAT_TEMPLATE, CHAT_TEMPLATE.removeprefix("{{ bos_token }}")]
)
def test_a_conversation_has_bos_once(template: str) -> None:
    """Regression story: a template that writes BOS, tokenized with special tokens, gave
    it twice; one that does not, tokenized without, gave none."""
    tokenizer = with_template(template)
    prompt = tokenizer.chat(TURNS)
    assert prompt[0] == BOS_ID
    assert prompt.count(BOS_ID) == 1
    assert tokenizer.decode(prompt) == "user hi.assistant "


@pytest.mark.parametrize("text", ["hi", "<s>hi"])
def test_a_text_has_bos_once(text: str) -> None:
    assert with_template(None).encode(text) == [BOS_ID, 11, 12]


def test_a_tokenizer_without_bos_gets_none() -> None:
    bare = HuggingFaceTokenizer(tiny_tokenizer(), None)
    template = bare.chat(TURNS)
    assert template[0] == BOS_ID, "the template's own"
    assert template.count(BOS_ID) == 1


def test_special_tokens_are_left_out_of_the_text() -> None:
    assert with_template(None).decode([BOS_ID, 11, 12, 3, 31, EOS_ID]) == "hi ,"


def test_turns_need_a_template() -> None:
    with pytest.raises(TreespecError, match="no chat template; give the prompt as"):
        with_template(None).chat(TURNS)


def test_a_template_that_refuses_its_turns_ends_in_one_line() -> None:
    tokenizer = with_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TreespecError, match=r"refuses these turns .*must alternate"):
        tokenizer.chat(TURNS)
