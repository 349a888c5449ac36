"""The part of FBGEMM that PyTorch brings along: matrix kernels for x86 CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ENGINE = "fbgemm"


def has_fbgemm() -> bool:
    """Return whether this build of PyTorch and this CPU have the kernels."""
    return _ENGINE in torch.backends.quantized.supported_engines


@contextmanager
def fbgemm_packing() -> Iterator[None]:
    """Let the packing operators of ``torch.ops.quantized`` make weights for FBGEMM.

    Which kernel a packed weight is for is fixed when it is packed, by a setting of the
    process; it is put back.
    """
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = _ENGINE
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
