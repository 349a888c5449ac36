"""Which kept cost profile is that of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError
from treespec.models.store import cache_root
from treespec.profile import Profile


def recorded_profile(
    config: Mapping[str, Any], environment: Mapping[str, Any]
) -> Profile:
    """Return the newest kept profile of a run's models, drafter, threads and CPU.

    It may be older than ``treespec profile`` would still reuse: so is the run.

    Args:
        config: The run's ``config.yaml``.
        environment: Its ``env.json``.

    Raises:
        TreespecError: None was kept.
    """
    folder = cache_root() / "profiles"
    fitting = [
        profile
        for profile in map(_read, sorted(folder.glob("*.json")))
        if profile is not None and _fits(profile, config, environment)
    ]
    if not fitting:
        raise TreespecError(
            f"{folder} has no cost profile of the run's models, drafter, threads and "
            "CPU: measure it with treespec profile and the run's pair and drafter, or "
            "name its file with costs=FILE"
        )
    return max(fitting, key=lambda profile: profile.measured_at)


def _read(path: Path) -> Profile | None:
    try:
        return Profile.read(path)
    except TreespecError:  # of another version, say; it fits no run
        return None


def _fits(
    profile: Profile, config: Mapping[str, Any], environment: Mapping[str, Any]
) -> bool:
    about, models = profile.about, environment.get("models", {})
    alike = (
        (about.get("drafter"), config.get("drafter")),
        (about.get("num_threads"), environment.get("num_threads")),
        (about.get("cuda"), environment.get("cuda")),
        (profile.machine.cpu, environment.get("cpu")),
        (set(about.get("models", ())), set(models)),
    )
    return all(mine == its for mine, its in alike) and all(
        models[name].get(key) == value
        for name, described in about.get("models", {}).items()
        for key, value in described.items()
    )
