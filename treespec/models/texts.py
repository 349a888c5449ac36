"""What token ids say, one by one and in a row, special tokens included."""

import re
from collections.abc import Iterable, Sequence

from treespec.models.tokenizer import HuggingFaceTokenizer

_BROKEN = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MOST_PENDING = 8


def token_texts(
    tokenizer: HuggingFaceTokenizer, tokens: Iterable[int]
) -> dict[int, str]:
    """Return the text of every token by itself, a space in front of a word included.

    A token that holds a part of a character reads as its bytes (``⟨F0 9F⟩``), one
    without any text as its name in the vocabulary or its id.

    Args:
        tokenizer: A model's tokenizer.
        tokens: Token ids, in any order, with or without repeats.
    """
    anchor = _Anchor(tokenizer)
    return {token: _token_text(tokenizer, anchor, token) for token in set(tokens)}


def text_pieces(tokenizer: HuggingFaceTokenizer, tokens: Sequence[int]) -> list[str]:
    """Return what every token of a text adds to it; together they are the text.

    A character that several tokens share belongs to the last of them.

    Args:
        tokenizer: A model's tokenizer.
        tokens: Token ids of a text that goes on, so that it may begin with a space.
    """
    anchor = _Anchor(tokenizer)
    pieces: list[str] = []
    pending: list[int] = []
    for place, token in enumerate(tokens, start=1):
        pending.append(token)
        text = anchor.decode(pending)
        whole = not text.endswith(_BROKEN) or len(pending) == _MOST_PENDING
        if whole or place == len(tokens):
            pieces.append(text)
            pending = []
        else:
            pieces.append("")
    return pieces


class _Anchor:
    """A letter that stands before what is decoded, and is taken away again.

    Many tokenizers drop the space in front of the first token.
    """

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._backend = tokenizer.backend
        self._tokens = self._backend("a", add_special_tokens=False).input_ids[-1:]
        self._text = self._decode(self._tokens)

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens inside of a text."""
        text = self._decode([*self._tokens, *tokens])
        if text.startswith(self._text):
            return text[len(self._text) :]
        return self._decode(tokens)

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._backend.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def _token_text(tokenizer: HuggingFaceTokenizer, anchor: _Anchor, token: int) -> str:
    text = anchor.decode([token])
    name = tokenizer.backend.convert_ids_to_tokens(token)
    if _BROKEN in text and name:
        return _bytes_of(name)
    return text or name or f"#{token}"


def _bytes_of(name: str) -> str:
    """Return the bytes that a token's name in a byte-level vocabulary stands for."""
    if match := _BYTE.fullmatch(name):
        return f"⟨{match[1].upper()}⟩"
    if not set(name) <= _BYTE_OF.keys():
        return name
    return f"⟨{' '.join(f'{_BYTE_OF[char]:02X}' for char in name)}⟩"


def _byte_letters() -> dict[str, int]:
    """Return the letters that byte-level vocabularies write bytes with, as GPT-2 did.

    Printable bytes stand for themselves, the others count up from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_letters()
