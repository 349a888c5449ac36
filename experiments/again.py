"""Jobs of recorded runs, built anew: for answers that ask the models once more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from treespec.build import build_job
from treespec.job import Job
from treespec.sinks.reader import Run


def job_of(run: Run) -> Job:
    """Return the job of a run, from the configuration that it recorded.

    Its texts have been judged: quality measures, and the permission that some of them
    need, are left out.
    """
    config = {**run.config, "quality": {}, "execute_code": False}
    return build_job(OmegaConf.create(config), list(_targets(config)))


def _targets(config: Any) -> Iterator[str]:
    """Return every import path of a configuration: the user has run them before."""
    if isinstance(config, dict):
        if isinstance(config.get("_target_"), str):
            yield config["_target_"]
        config = list(config.values())
    if isinstance(config, list):
        for part in config:
            yield from _targets(part)
