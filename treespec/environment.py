"""What a run ran on: enough to say why two runs of one configuration differ."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from treespec.models.loading import ModelInfo, file_digests
from treespec.models.memory import cache_bytes_per_token, weight_bytes
from treespec.models.source import LocatedModel

_PACKAGES = (
    "treespec",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "hydra-core",
    "omegaconf",
    "wandb",
    "gguf",
    "accelerate",
    "pyarrow",
    "torchao",
)
_GIT_TIMEOUT_S = 10


def describe_machine() -> dict[str, Any]:
    """Return versions, hardware, threads, the command and the project's git state."""
    return {
        "argv": list(sys.argv),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: package_version(name) for name in _PACKAGES},
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "cuda": [
            torch.cuda.get_device_name(index)
            for index in range(torch.cuda.device_count())
        ],
        "git": _git_state(_project_folder()),
    }


def describe_model(
    located: LocatedModel, info: ModelInfo, module: torch.nn.Module
) -> dict[str, Any]:
    """Return what one model is, where it came from and how it is held."""
    weights = next(module.parameters())
    return {
        "name": located.name,
        "hub_id": located.source.hub_id,
        "wheel": located.source.wheel,
        "revision": located.revision,
        "sha256": file_digests(located),
        "model_type": info.model_type,
        "num_layers": info.num_layers,
        "vocab_size": info.vocab_size,
        "max_positions": info.max_positions,
        "eos_ids": list(info.eos_ids),
        "quantization": located.source.quantization,
        "weight_bytes": weight_bytes(module),
        "cache_bytes_per_token": cache_bytes_per_token(module),
        "dtype": str(weights.dtype).removeprefix("torch."),
        "device": str(weights.device),
        "attn_implementation": located.source.attn_implementation,
    }


def package_version(name: str) -> str | None:
    """Return an installed package's version; ``None`` if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_model() -> str | None:
    """Return the name of this machine's CPU, as far as it is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or None


def _project_folder() -> Path:
    """Return the checkout that treespec runs from, else the working directory."""
    checkout = Path(__file__).resolve().parents[1]
    return checkout if (checkout / ".git").exists() else Path.cwd()


def _git_state(folder: Path) -> Mapping[str, Any] | None:
    """Return commit and whether files differ from it; ``None`` outside of git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
