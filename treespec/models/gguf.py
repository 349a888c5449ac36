"""GGUF files: checked before use, unpacked once into a Hugging Face folder.

Dequantized weights are kept in the dtype that is asked for: rounding them once here or
at every start gives the same numbers, and this way the second start takes a moment.
"""

import contextlib
import io
import json
import os
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from tqdm.auto import tqdm
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig

from treespec.errors import TreespecError
from treespec.models.store import (
    cache_root,
    move_folder,
    scratch_folder,
    sha256_of,
    writing,
)
from treespec.models.support import causal_model_class
from treespec.models.weights import UNREADABLE, one_line, quiet, read_gguf_weights

_FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f",
    7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_STRING_BYTES = 1 << 26  # a broken length must not become an allocation
_FLOAT_DTYPES = {
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
}
_END_OF_TURN = ("eos", "eot", "eom")
_LAYOUT = 1  # of the unpacked folder; raise it when what is written there changes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says of itself before its tensors.

    Attributes:
        metadata: Key-value pairs; of an array only its length.
        tensor_types: The kinds of tensors in the file.
        num_bytes: Least size of a file that holds all its tensors.
    """

    metadata: dict[str, Any]
    tensor_types: frozenset[GGMLQuantizationType]
    num_bytes: int

    @property
    def dtype(self) -> str:
        """The file's own float type; float32 if its weights are quantized."""
        if not self.tensor_types <= _FLOAT_DTYPES.keys():
            return "float32"
        # Norms stay in float32 beside half weights: the half type is the model's.
        halves = [_FLOAT_DTYPES[t] for t in self.tensor_types if t]
        return halves[0] if len(halves) == 1 else "float32"

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary."""
        return int(self.metadata["tokenizer.ggml.tokens"])

    @property
    def adds_bos(self) -> bool:
        """Whether BOS goes before every text; old sentencepiece files do not say."""
        default = self.metadata.get("tokenizer.ggml.model") == "llama"
        return bool(self.metadata.get("tokenizer.ggml.add_bos_token", default))

    @property
    def eos_ids(self) -> list[int]:
        """Every id that ends a text or a turn."""
        keys = [f"tokenizer.ggml.{name}_token_id" for name in _END_OF_TURN]
        return sorted({int(self.metadata[k]) for k in keys if k in self.metadata})


def read_header(path: Path, key: str) -> GgufHeader:
    """Read a GGUF file up to its tensors.

    Raises:
        TreespecError: It is no GGUF file, is cut short, or lacks what a language model
            needs.
    """
    try:
        with path.open("rb") as file:
            header = _parse(file)
    except OSError as error:
        raise TreespecError(f"{key}: {path} cannot be read ({error})") from error
    except (struct.error, ValueError, TypeError, ArithmeticError) as error:
        raise TreespecError(
            f"{key}: {path} is not a sound GGUF file ({one_line(error)}); "
            "fetch it again"
        ) from error
    if (seen := path.stat().st_size) < header.num_bytes:
        raise TreespecError(
            f"{key}: {path} is cut short ({seen} of {header.num_bytes} bytes); fetch "
            "it again"
        )
    for needed in ("general.architecture", "tokenizer.ggml.tokens"):
        if needed not in header.metadata:
            raise TreespecError(
                f"{key}: {path} has no {needed}, so it is not a whole language model; "
                "give another file"
            )
    return header


def unpack(path: Path, dtype: str, key: str, *, progress: bool) -> Path:
    """Return the Hugging Face folder of a GGUF file, made at the first call.

    Args:
        path: The GGUF file.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        key: Place in the configuration, for messages.
        progress: Whether to show a progress bar.
    """
    header = read_header(path, key)
    kept = header.dtype if dtype == "auto" else dtype
    place = _place(path, kept)
    if not place.is_dir():
        _unpack_to(place, path, header, getattr(torch, kept), key, progress=progress)
    return place


def unpacked(path: Path, dtype: str, key: str) -> Path | None:
    """Return the Hugging Face folder of a GGUF file, if it has been made."""
    kept = read_header(path, key).dtype if dtype == "auto" else dtype
    place = _place(path, kept)
    return place if place.is_dir() else None


def _place(path: Path, dtype: str) -> Path:
    return cache_root() / "unpacked" / f"{sha256_of(path)[:32]}-{dtype}-v{_LAYOUT}"


def _unpack_to(
    place: Path,
    path: Path,
    header: GgufHeader,
    dtype: torch.dtype,
    key: str,
    *,
    progress: bool,
) -> None:
    with (
        tqdm(
            total=4,
            desc=f"{key}: unpacking {path.name} (only once)",
            bar_format="{desc}{postfix} {bar} {n}/{total} [{elapsed}]",
            disable=not progress,
        ) as bar,
        quiet(),
    ):
        bar.set_postfix_str("configuration")
        config = _read_config(path, header, key)
        bar.update()
        bar.set_postfix_str("weights")
        # The converter draws a bar of its own, which has no switch.
        with contextlib.redirect_stderr(io.StringIO()):
            model = read_gguf_weights(path, config, dtype=dtype, key=key)
        bar.update()
        bar.set_postfix_str("tokenizer")
        tokenizer = _read_tokenizer(path, header, key)
        bar.update()
        bar.set_postfix_str("writing")
        if header.eos_ids:
            model.generation_config.eos_token_id = header.eos_ids
        with writing(key), scratch_folder(place) as scratch:
            model.save_pretrained(scratch / "model")
            tokenizer.save_pretrained(scratch / "model")
            _drop_invented_tokens(scratch / "model", header.num_tokens)
            move_folder(scratch / "model", place)
        bar.update()


def _read_config(path: Path, header: GgufHeader, key: str) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    except UNREADABLE as error:
        architecture = header.metadata["general.architecture"]
        raise TreespecError(
            f"{key}: transformers cannot unpack the GGUF architecture "
            f"{architecture!r} ({one_line(error)}); give the model as a Hugging Face "
            "folder instead"
        ) from error
    causal_model_class(config, key)
    return config


def _read_tokenizer(path: Path, header: GgufHeader, key: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The tokenizers library raises nothing narrower.
    except Exception as error:
        raise TreespecError(
            f"{key}: the tokenizer in {path} cannot be read ({one_line(error)}); give "
            "the model as a Hugging Face folder instead"
        ) from error
    # Some versions of transformers overlook what the file says about BOS.
    if tokenizer.bos_token_id is not None:
        tokenizer.add_bos_token = header.adds_bos
    return tokenizer


def _drop_invented_tokens(folder: Path, num_tokens: int) -> None:
    """Take out the default special tokens that the converter adds to a vocabulary.

    Their ids lie behind the last row of the embedding, so a text that spells one out
    would fail in the model.
    """
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    real = [token for token in content["added_tokens"] if token["id"] < num_tokens]
    if len(real) < len(content["added_tokens"]):
        file.write_text(json.dumps({**content, "added_tokens": real}))


def _parse(file: BinaryIO) -> GgufHeader:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with the letters GGUF")
    version = _number(file, "<I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}; 2 and 3 are known")
    num_tensors, num_pairs = _number(file, "<Q"), _number(file, "<Q")
    metadata = {}
    for _ in range(num_pairs):
        name = _string(file)
        metadata[name] = _value(file, _number(file, "<I"))
    kinds, ends = set(), [0]
    for _ in range(num_tensors):
        _string(file)
        shape = [_number(file, "<Q") for _ in range(_number(file, "<I"))]
        kind = GGMLQuantizationType(_number(file, "<I"))
        block, block_bytes = GGML_QUANT_SIZES[kind]
        kinds.add(kind)
        ends.append(_number(file, "<Q") + prod(shape) // block * block_bytes)
    alignment = metadata.get("general.alignment", 32)
    data_start = -(-file.tell() // alignment) * alignment
    return GgufHeader(metadata, frozenset(kinds), data_start + max(ends))


def _number(file: BinaryIO, pattern: str) -> Any:
    return struct.unpack(pattern, file.read(struct.calcsize(pattern)))[0]


def _string(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > _MAX_STRING_BYTES:
        raise ValueError(f"it holds a string of {length} bytes")
    return file.read(length).decode()


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        if kind not in _FORMATS:
            raise ValueError(f"it holds a value of the unknown kind {kind}")
        return _number(file, _FORMATS[kind])
    element, length = _number(file, "<I"), _number(file, "<Q")
    if element in _FORMATS:
        file.seek(length * struct.calcsize(_FORMATS[element]), os.SEEK_CUR)
    elif element == _STRING:
        for _ in range(length):
            _string(file)
    else:
        raise ValueError(f"it holds an array of the unknown kind {element}")
    return length
