"""Draft and target are compared token by token."""

import logging
from pathlib import Path

import pytest

from tests.models.folder import save_folder
from tests.tiny import TOKENS, tiny_model
from treespec.errors import IncompatiblePartsError
from treespec.models.loading import inspect, locate
from treespec.models.source import ModelSource
from treespec.models.vocabulary import check_pair

VOCAB = {token: index for index, token in enumerate(TOKENS)}


def test_padded_embedding_rows_are_no_difference(tmp_path: Path) -> None:
    """Regression story (vLLM 18541): two sizes of one family have the same tokenizer
    and differently padded embeddings, and were refused by their sizes."""
    infos = {}
    for key, rows in (("target", 40), ("draft", 32)):
        model = tiny_model("llama", 1, vocab_size=rows, num_layers=1)
        source = ModelSource(path=str(save_folder(tmp_path / key, model)))
        infos[key] = inspect(locate(source, key), key)
    assert infos["target"].vocab_size != infos["draft"].vocab_size
    check_pair(infos["target"].tokenizer.vocab(), infos["draft"].tokenizer.vocab())


def test_a_permuted_vocabulary_of_the_same_size_is_refused() -> None:
    permuted = {**VOCAB, "a": VOCAB["b"], "b": VOCAB["a"]}
    with pytest.raises(IncompatiblePartsError) as caught:
        check_pair(VOCAB, permuted, key="pair")
    assert str(caught.value) == (
        "pair.draft: its vocabulary is not the target's: 2 token(s) differ, for "
        "example 'a' is id 4 in the target and id 5 in the draft; choose a draft "
        "model with the same tokenizer, or draft without a model: "
        "drafter=prompt_lookup (experts: pair.allow_mismatch=true)"
    )


def test_a_token_that_only_one_of_them_has_is_a_difference() -> None:
    for target, draft in (({**VOCAB, "z!": 32}, VOCAB), (VOCAB, {**VOCAB, "z!": 32})):
        with pytest.raises(IncompatiblePartsError, match=r"1 token.*absent in the"):
            check_pair(target, draft)


def test_an_expert_may_insist_and_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        check_pair(VOCAB, {**VOCAB, "z!": 32}, allow_mismatch=True)
    assert "1 token(s) differ" in caplog.text
