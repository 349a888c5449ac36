"""Run a study and answer its question.

    python experiments/run.py                              # the studies there are
    python experiments/run.py NAME                         # its jobs, then its answer
    python experiments/run.py NAME --fast                  # a small form of it
    python experiments/run.py NAME --write                 # put the answer beside it
    python experiments/run.py --write                      # make the index anew
    python experiments/run.py NAME pair=custom pair.target.path=DIR settings.margin=0.1

What follows the name changes every job, as it would change ``treespec``; ``settings.``
changes the study's own numbers. Reports go to ``outputs/studies/NAME``, or here with
``--write``. Exit codes are those of ``treespec``: 0, or the worst of the jobs'.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from engine import interrupted, parse, read_plan, run_study, study_names
from report import write_index, write_report
from treespec.errors import TreespecError
from treespec.pipes import say
from treespec.sweeping import BAD_INPUT, OK

HERE = Path(__file__).resolve().parent
_FLAGS = ("--fast", "--write")


def main(arguments: Sequence[str], home: Path = HERE) -> int:
    """Run what was typed; return the exit code."""
    try:
        return _main(arguments, home)
    except TreespecError as error:
        say(f"error: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        return interrupted()


def _main(arguments: Sequence[str], home: Path) -> int:
    flags = [word for word in arguments if word in _FLAGS]
    words = [word for word in arguments if word not in _FLAGS]
    if not words and "--write" in flags:
        write_index(home)
        return OK
    if not words or words[0].startswith("-") or "=" in words[0]:
        print(_usage(home))
        return OK if not words or words[0] in {"-h", "--help"} else BAD_INPUT
    fast, write = (flag in flags for flag in _FLAGS)
    if fast and write:
        raise TreespecError(
            "--fast measures nothing that is worth --write; leave one of them out"
        )
    finished = run_study(home, parse(words[0], words[1:], fast=fast))
    if finished.answer is not None:
        path = write_report(finished, home if write else finished.measured.folder)
        if write:
            write_index(home)
        print(f"\n{finished.plan.question}\n{finished.answer.summary}\n\n{path}")
    for job, why in finished.measured.missing.items():
        say(f"failed: {job}: {why}")
    return finished.code


def _usage(home: Path) -> str:
    studies = [
        f"  {name}: {read_plan(home, name).question}" for name in study_names(home)
    ]
    return "\n".join([str(__doc__), "Studies:", *studies])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
