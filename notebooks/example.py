"""Where the notebooks find their runs, and how such runs are made.

``TREESPEC_NOTEBOOK_RUN`` chooses: a folder of yours, or ``fresh`` to make one with
SmolLM2 first; without it the committed runs in ``example/`` are read.

    python notebooks/example.py        # make the committed runs anew
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
COMMITTED, FRESH = HERE / "example", HERE / "outputs"
VARIABLE = "TREESPEC_NOTEBOOK_RUN"

SWEEP = (
    "-m",
    "pair=smollm2",
    "drafter=lookup_then_recycling",
    "policy=chain,best_first",
    "controller.max_depth=5",
    "controller.max_width=4",
    "controller.max_nodes=6",
    "num_prompts=6",
    "max_new_tokens=32",
    "trace=nodes",
    "wandb.mode=disabled",
)
"""A chain and a tree with the same drafter, on the same prompts."""
# treespec must not record where this machine keeps its programs.
_COMMAND = "import sys; sys.argv[0] = 'treespec'; from treespec.cli import main; main()"


def runs_folder() -> Path:
    """Return the folder of the runs to look at."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "fresh":
        make(FRESH)
        return FRESH
    return Path(chosen) if chosen else COMMITTED


def make(folder: Path, overrides: Sequence[str] = SWEEP) -> None:
    """Decode the example's prompts; runs that are there already are kept."""
    own = [f"output_root={folder.name}", "sweep_name=tree_and_chain"]
    subprocess.run(
        [sys.executable, "-c", _COMMAND, *overrides, *own],
        cwd=folder.parent,
        check=True,
    )


def forget_machine(folder: Path) -> None:
    """Name models in ``env.json`` by what they are, not by where they lie."""
    for path in folder.rglob("env.json"):
        environment = json.loads(path.read_text(encoding="utf-8"))
        for model in environment["models"].values():
            model["name"] = model["wheel"] or model["hub_id"] or model["name"]
        text = json.dumps(environment, indent=2) + "\n"
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    make(COMMITTED, (*SWEEP, "force=true"))
    forget_machine(COMMITTED)
