"""Time a model's forward by number of rows: stock, and as treespec loads it.

    python benchmarks/model_forward.py --model DIR --dtype bfloat16
    python benchmarks/model_forward.py --model DIR --kinds treespec int8 int8-draft

On the CPU; the kinds take turns, and the median of the turns is printed. ``treespec``:
packed linear layers and, for Llama-like models, the forward that is written out;
``int8``: the same with layers that repeat their bits in any company, as a target needs
them; ``int8-draft``: with PyTorch's, as a draft gets them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM

from treespec.forwards import Forwards
from treespec.models.loading import load
from treespec.models.source import ModelSource

ROWS = (1, 2, 3, 4, 6, 8, 16)
KINDS = ("stock", "treespec", "int8", "int8-draft")

Forward = Callable[[int], object]


def stock(folder: str, dtype: str) -> Forward:
    """Return a forward of a number of rows by transformers."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    module.eval().requires_grad_(False)
    return lambda rows: module(torch.zeros(1, rows, dtype=torch.int64), use_cache=False)


def ours(folder: str, dtype: str, kind: str) -> Forward:
    """Return a forward of a number of rows by treespec."""
    quantization = None if kind == "treespec" else "int8"
    source = ModelSource(path=folder, dtype=dtype, quantization=quantization)
    model = load(source, exact=kind != "int8-draft").model
    forwards = Forwards(model, [0], max(ROWS))
    return lambda rows: forwards.run(rows - 1)


def main() -> None:
    """Print milliseconds per forward, and the ratio to one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:2])
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    kinds = {
        kind: stock(args.model, args.dtype)
        if kind == "stock"
        else ours(args.model, args.dtype, kind)
        for kind in args.kinds
    }
    one_row: dict[str, float] = {}
    for num_rows in ROWS:
        turns: dict[str, list[float]] = {kind: [] for kind in kinds}
        for forward in kinds.values():
            forward(num_rows)
        for _ in range(args.repeats):
            for kind, forward in kinds.items():
                start = time.perf_counter()
                forward(num_rows)
                turns[kind].append(1000 * (time.perf_counter() - start))
        for kind, times in turns.items():
            median = statistics.median(times)
            one_row.setdefault(kind, median)
            ratio = median / one_row[kind]
            print(
                f"{num_rows:3d} rows {kind:10s} {median:7.1f} ms {ratio:5.2f}x one row",
                flush=True,
            )


if __name__ == "__main__":
    main()
