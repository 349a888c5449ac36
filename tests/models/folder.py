"""Saves a tiny model and its tokenizer as a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from tests.tiny import TOKENS, tiny_tokenizer


def save_folder(
    folder: Path, model: PreTrainedModel, tokens: Sequence[str] = TOKENS
) -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer(tokens).save_pretrained(folder)
    return folder
