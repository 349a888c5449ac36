"""What single tokens say, and what each adds to a text."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.tiny import BOS_ID, tiny_tokenizer
from treespec.models.texts import text_pieces, token_texts
from treespec.models.tokenizer import HuggingFaceTokenizer


def byte_level() -> HuggingFaceTokenizer:
    """A tokenizer with a token per byte, as GPT-2 and its like have them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return HuggingFaceTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer), None
    )


def sentence_pieces() -> HuggingFaceTokenizer:
    """A tokenizer that drops the space in front of a text, as Llama 2 has it."""
    tokens = ("<unk>", "<s>", "</s>", "▁", "a", "▁b", "<0xE6>", "<0xBC>", "<0xA2>")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return HuggingFaceTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer), None
    )


@pytest.mark.parametrize("text", ["a b", "naïve 漢字 👩\u200d💻!", "x\n\t", "🙂"])
def test_pieces_together_are_the_text(text):
    tokenizer = byte_level()
    tokens = tokenizer.encode(text)
    pieces = text_pieces(tokenizer, tokens)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_a_character_belongs_to_its_last_token():
    tokenizer = byte_level()
    assert text_pieces(tokenizer, tokenizer.encode("é!")) == ["", "é", "!"]


def test_half_a_character_at_the_end_of_a_text_is_kept():
    tokenizer = byte_level()
    assert text_pieces(tokenizer, tokenizer.encode("aé")[:-1]) == ["a", "\ufffd"]


def test_half_a_character_reads_as_its_bytes():
    tokenizer = byte_level()
    tokens = tokenizer.encode("é")
    assert [token_texts(tokenizer, tokens)[t] for t in tokens] == ["⟨C3⟩", "⟨A9⟩"]


def test_a_space_in_front_of_a_word_is_kept():
    """Regression story: decoded alone, ``▁b`` read ``b`` as if it stood in a word."""
    tokenizer = sentence_pieces()
    assert token_texts(tokenizer, [4, 5, 6]) == {4: "a", 5: " b", 6: "⟨E6⟩"}
    assert text_pieces(tokenizer, [5, 4, 6, 7, 8]) == [" b", "a", "", "", "漢"]


def test_special_tokens_and_unknown_ids_have_names():
    tokenizer = HuggingFaceTokenizer(tiny_tokenizer(), BOS_ID)
    assert token_texts(tokenizer, [2, 99]) == {2: "</s>", 99: "#99"}
