"""Sweeps in processes of their own: killed, side by side, one job each.

Run as a script by ``tests/test_sweeps.py``, which reads the report that it prints. The
processes are forks of this one, so that nothing has to be imported again.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch

import treespec.build
import treespec.collect
import treespec.runner
from treespec.cli import run_command
from treespec.sinks.reader import read_run
from treespec.sweep_log import SWEEP_LOG, SweepLog

GRID = {
    "policy": ("chain", "top_k_tree"),
    "controller.max_depth": ("1", "2", "3"),
    "seed": ("0", "1"),
}
SWEEP = ["-m", *(f"{key}={','.join(values)}" for key, values in GRID.items())]
DRAFTERS = "drafter=prompt_lookup,draft_model,early_exit"
NUM_KILLS = 5


def start(overrides: list[str], folder: Path) -> int:
    """Begin a command in a child and in a folder; returns the child's id."""
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child:
        return child
    os.chdir(folder)
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 99
    try:
        code = run_command(overrides)
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait(child: int) -> int:
    """Return a child's exit code; negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def texts(folder: Path) -> dict[str, list[list[int]]]:
    """Return the tokens of every finished run; reading checks each file."""
    runs = [read_run(done.parent) for done in folder.glob("outputs/*/*/DONE")]
    return {
        run.folder.name: [
            list(tokens)
            for outcome in run.outcomes
            for tokens in (outcome.speculative.tokens, outcome.baseline.tokens)
        ]
        for run in runs
    }


def begun(folder: Path) -> list[int]:
    """Return how often each finished run was decoded to its end."""
    lines = (folder / "outputs/default" / SWEEP_LOG).read_bytes().splitlines()
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    done = [
        tuple(row["job"])
        for row in rows
        if row["event"] == "ended" and row["message"].startswith("done")
    ]
    return sorted(Counter(done).values())


def killed_and_resumed(common: list[str], undisturbed_s: float, root: Path) -> dict:
    """Kill one sweep several times, at random moments, and let it end at last."""
    moments, folder = random.Random(), root / "killed"
    signals = []
    for _ in range(NUM_KILLS):
        child = start([*common, *SWEEP], folder)
        time.sleep(moments.uniform(0, 0.4 * undisturbed_s))
        os.kill(child, signal.SIGKILL)
        signals.append(wait(child))
        texts(folder)  # whatever calls itself finished can be read
        if SweepLog(folder / "outputs/default").read().jobs:
            treespec.collect.collect(folder / "outputs/default")
    code = wait(start([*common, *SWEEP], folder))
    left = [str(path) for path in folder.rglob("*.partial")]
    return {
        "signals": signals,
        "code": code,
        "texts": texts(folder),
        "decoded": begun(folder),
        "left": left,
        "output": (folder / "output.txt").read_text(),
    }


def side_by_side(common: list[str], root: Path) -> dict:
    """Run one sweep twice at once in one folder, then see what is left of it."""
    folder = root / "twice"
    children = [start([*common, *SWEEP], folder) for _ in range(2)]
    codes = [wait(child) for child in children]
    again = wait(start([*common, *SWEEP], folder))
    return {
        "codes": codes,
        "again": again,
        "texts": texts(folder),
        "decoded": begun(folder),
        "output": (folder / "output.txt").read_text(),
    }


def apart(common: list[str], root: Path) -> dict:
    """Run each job of a sweep of unlike models in a process of its own, and together.

    The models change between the jobs and come back.
    """
    together, alone = root / "together", root / "alone"
    common = [word for word in common if not word.startswith("drafter=")]
    sweep = ["-m", "pair.target.attn_implementation=treespec,eager", DRAFTERS]
    codes = [wait(start([*common, *sweep], together))]
    for attention in ("treespec", "eager"):
        for drafter in DRAFTERS.partition("=")[2].split(","):
            job = [f"pair.target.attn_implementation={attention}", f"drafter={drafter}"]
            codes.append(wait(start([*common, *job], alone)))
    output = (together / "output.txt").read_text()
    return {
        "codes": codes,
        "together": texts(together),
        "alone": texts(alone),
        "output": output,
    }


def main(common: list[str], root: Path) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    code = wait(start([*common, *SWEEP], root / "undisturbed"))
    undisturbed_s = time.monotonic() - began
    undisturbed = texts(root / "undisturbed")
    report = {
        "undisturbed": {"code": code, "texts": undisturbed, "s": undisturbed_s},
        "killed": killed_and_resumed(common, undisturbed_s, root),
        "twice": side_by_side(common, root),
        "apart": apart(common, root),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
