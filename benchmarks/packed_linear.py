"""Time a model's forward by number of rows, with stock and with packed linear layers.

    python benchmarks/packed_linear.py --model DIR

float32 on the CPU; the two take turns, and the median of the turns is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM

from treespec.models.packed_linear import pack_linear_layers

ROWS = (1, 2, 4, 6, 8, 16)


def main() -> None:
    """Print milliseconds per forward, and the ratio to one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    models = {}
    for name in ("stock", "packed"):
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        models[name] = model.eval()
    pack_linear_layers(models["packed"])
    one_row: dict[str, float] = {}
    for num_rows in ROWS:
        tokens = torch.randint(0, 1000, (1, num_rows))
        turns: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(args.repeats):
            for name, model in models.items():
                start = time.perf_counter()
                model(tokens, use_cache=False)
                turns[name].append(1000 * (time.perf_counter() - start))
        for name, times in turns.items():
            median = statistics.median(times)
            one_row.setdefault(name, median)
            ratio = median / one_row[name]
            print(
                f"{num_rows:3d} rows {name:6s} {median:7.1f} ms {ratio:5.2f}x one row"
            )


if __name__ == "__main__":
    main()
