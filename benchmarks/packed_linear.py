"""Time a model's forward by number of rows, with stock, packed and int8 linear layers.

    python benchmarks/packed_linear.py --model DIR --dtype bfloat16
    python benchmarks/packed_linear.py --model DIR --kinds packed int8

On the CPU; the kinds take turns, and the median of the turns is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from treespec.models.packed_linear import pack_linear_layers
from treespec.models.quantize import quantize

ROWS = (1, 2, 4, 6, 8, 16)
KINDS = ("stock", "packed", "int8")


def loaded(folder: str, dtype: str, kind: str) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval().requires_grad_(False)
    if kind == "packed":
        pack_linear_layers(model)
    if kind == "int8":
        quantize(model, kind, "the model")
    return model


def main() -> None:
    """Print milliseconds per forward, and the ratio to one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:2])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    models = {kind: loaded(args.model, args.dtype, kind) for kind in args.kinds}
    one_row: dict[str, float] = {}
    for num_rows in args.rows:
        tokens = torch.randint(0, 1000, (1, num_rows))
        turns: dict[str, list[float]] = {kind: [] for kind in models}
        for model in models.values():
            model(tokens, use_cache=False)
        for _ in range(args.repeats):
            for kind, model in models.items():
                start = time.perf_counter()
                model(tokens, use_cache=False)
                turns[kind].append(1000 * (time.perf_counter() - start))
        for kind, times in turns.items():
            median = statistics.median(times)
            one_row.setdefault(kind, median)
            ratio = median / one_row[kind]
            print(
                f"{num_rows:3d} rows {kind:6s} {median:7.1f} ms {ratio:5.2f}x one row",
                flush=True,
            )


if __name__ == "__main__":
    main()
