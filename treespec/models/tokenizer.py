"""A Hugging Face tokenizer as the decoder sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from treespec.errors import TreespecError
from treespec.models.source import LocatedModel
from treespec.models.weights import one_line, quiet


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """Text to token ids and back; a prompt begins with the BOS token at most once.

    Attributes:
        backend: The tokenizer of transformers.
        bos_id: The id that the tokenizer puts before every text, if it does.
    """

    backend: Any
    bos_id: int | None

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, special tokens of the model included."""
        return self._with_one_bos(list(self.backend(text).input_ids))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        text: str = self.backend.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def chat(self, turns: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the prompt that asks for the next turn of a conversation.

        Args:
            turns: Each with ``role`` and ``content``.
        """
        if not self.has_chat_template:
            raise TreespecError(
                "the model's tokenizer has no chat template; give the prompt as text "
                "instead of turns, or use an instruct model"
            )
        try:
            text = self.backend.apply_chat_template(
                [dict(turn) for turn in turns],
                add_generation_prompt=True,
                tokenize=False,
            )
        except TemplateError as error:
            raise TreespecError(
                f"the model's chat template refuses these turns ({one_line(error)}); "
                "change their roles or order"
            ) from error
        encoded = self.backend(text, add_special_tokens=False)
        return self._with_one_bos(list(encoded.input_ids))

    def vocab(self) -> dict[str, int]:
        """Return the map from token to id, added tokens included."""
        return dict(self.backend.get_vocab())

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`chat` can be used."""
        return self.backend.chat_template is not None

    @property
    def eos_id(self) -> int | None:
        """The tokenizer's own end-of-sequence id."""
        eos_id: int | None = self.backend.eos_token_id
        return eos_id

    def _with_one_bos(self, tokens: list[int]) -> list[int]:
        """Mend what a template or a text that spells BOS out did to the first token."""
        if self.bos_id is None:
            return tokens
        start = 0
        while start < len(tokens) and tokens[start] == self.bos_id:
            start += 1
        return [self.bos_id, *tokens[start:]]


def load_tokenizer(located: LocatedModel, key: str) -> HuggingFaceTokenizer:
    """Return the tokenizer of a model; reads no weights."""
    try:
        with quiet():
            backend = AutoTokenizer.from_pretrained(
                located.name,
                revision=located.revision,
                local_files_only=located.offline,
                trust_remote_code=located.source.trust_remote_code,
            )
    # The tokenizers library raises nothing narrower.
    except Exception as error:
        raise TreespecError(
            f"{key}: the tokenizer of {located.name} cannot be read "
            f"({one_line(error)}); put its tokenizer.json beside config.json"
        ) from error
    first = backend("a").input_ids[:1]
    adds_bos = first == [backend.bos_token_id]
    return HuggingFaceTokenizer(backend, backend.bos_token_id if adds_bos else None)
