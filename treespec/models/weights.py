"""Read weights through transformers: quietly, and never with a gap left random."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from treespec.errors import TreespecError
from treespec.models.source import LocatedModel

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    RuntimeError,
    ImportError,
    struct.error,
    SafetensorError,
)
"""What transformers raises for a checkpoint that it cannot read."""


class _LoadingInfo(TypedDict):
    missing_keys: set[str]
    mismatched_keys: set[tuple[str, object, object]]


def one_line(error: BaseException) -> str:
    """Return the first sentence-like line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back the log lines and progress bars of transformers."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def read_weights(
    located: LocatedModel,
    *,
    dtype: torch.dtype | str,
    device: torch.device,
    attn_implementation: str | None,
    key: str,
) -> PreTrainedModel:
    """Return the model of a folder or a hub id with its weights on the device."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            located.name,
            revision=located.revision,
            local_files_only=located.offline,
            trust_remote_code=located.source.trust_remote_code,
            dtype=dtype,
            device_map={"": str(device)},
            attn_implementation=attn_implementation,
            output_loading_info=True,
        )
    except UNREADABLE as error:
        raise TreespecError(
            f"{key}: the weights of {located.name} cannot be read ({one_line(error)}); "
            "fetch the model again"
        ) from error
    _check_complete(info, located.name, key)
    return model


def read_gguf_weights(
    gguf: Path, config: PreTrainedConfig, *, dtype: torch.dtype, key: str
) -> PreTrainedModel:
    """Return the model of a GGUF file, dequantized, on the CPU."""
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            config=config,
            dtype=dtype,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    except UNREADABLE as error:
        raise TreespecError(
            f"{key}: the weights of {gguf} cannot be read ({one_line(error)}); "
            "fetch the file again"
        ) from error
    _check_complete(info, str(gguf), key)
    return model


def _check_complete(info: _LoadingInfo, name: str, key: str) -> None:
    """Refuse a checkpoint with gaps: transformers fills them with random numbers."""
    wrong = sorted(info["missing_keys"])
    wrong += sorted(entry[0] for entry in info["mismatched_keys"])
    if wrong:
        raise TreespecError(
            f"{key}: the weights of {name} lack {len(wrong)} parameter(s) of the "
            f"model, {wrong[0]} for one; fetch the model again, or mend its config.json"
        )
