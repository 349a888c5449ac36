"""A search for the planner's best options, with optuna.

    python experiments/optuna_planner.py 20                     # trials, then overrides
    python experiments/optuna_planner.py 20 pair=qwen25_coder num_prompts=8

Needs ``pip install 'treespec[optuna]'``. Every trial is a run in ``outputs/optuna``,
decoded in turns with its own plain decoding, so that trials compare by their speed-ups;
the study lies beside them. The same command again adds as many trials; a run that is
there already is not decoded again. The best of many trials is so by luck in part: run
what this prints on prompts that it has not seen.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FixedTrial, Trial, TrialState

from treespec.compose import compose_job
from treespec.errors import TreespecError
from treespec.loaded_models import LoadedModels
from treespec.runner import LosslessViolationError, run
from treespec.sweeping import BAD_INPUT, FAILED, OK

BASE = ("policy=planner", "controller=ample", "sweep_name=optuna")
USAGE = "write python experiments/optuna_planner.py TRIALS [key=value ...]"


def options(trial: Trial | FixedTrial) -> list[str]:
    """Return the overrides of one trial: what the search chooses from."""
    return [
        f"policy.max_children={trial.suggest_int('max_children', 1, 8)}",
        f"controller.max_depth={trial.suggest_int('max_depth', 1, 16)}",
        f"controller.max_width={trial.suggest_int('max_width', 1, 8)}",
        f"controller.max_nodes={trial.suggest_int('max_nodes', 2, 64, log=True)}",
    ]


def search(study: optuna.Study, num_trials: int, overrides: Sequence[str]) -> None:
    """Run trials; one that fails is told, and does not end the study."""
    models = LoadedModels()
    for _ in range(num_trials):
        trial = study.ask()
        words = [*BASE, *options(trial), *overrides]
        print(f"\n[trial {trial.number}] {' '.join(words)}", flush=True)
        try:
            speedup = run(compose_job(words), models).summary["speedup"]
        except (TreespecError, LosslessViolationError, RuntimeError) as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            speedup = None
        if speedup is None:  # also where other jobs ran beside it
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, speedup)


def open_study(overrides: Sequence[str]) -> optuna.Study:
    """Return the study beside the runs; one that is there already goes on."""
    job = compose_job([*BASE, *overrides])
    sweep = job.folder.parent
    sweep.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(sweep / "optuna.log")))
    study = optuna.create_study(
        study_name=shlex.join(overrides) or "default",
        storage=storage,
        direction="maximize",
        load_if_exists=True,
    )
    # The same trials for the same command, and others when it goes on.
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
    return study


def main(arguments: Sequence[str]) -> int:
    """Search, and say what was best; return the exit code."""
    if not arguments or not arguments[0].isdigit() or int(arguments[0]) < 1:
        print(f"error: {USAGE}", file=sys.stderr)
        return BAD_INPUT
    overrides = arguments[1:]
    try:
        study = open_study(overrides)
    except TreespecError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    search(study, int(arguments[0]), overrides)
    done = study.get_trials(states=[TrialState.COMPLETE])
    if not done:
        print("error: no trial gave a speed-up", file=sys.stderr)
        return FAILED
    best = FixedTrial(study.best_params)
    words = shlex.join(["treespec", *BASE[:2], *options(best), *overrides])
    print(f"\nbest of {len(done)}: {study.best_value:.2f}x\n{words}", flush=True)
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
