"""Profiles are measured once and kept, in the cache folder.

Under a key of what a profile depends on: the models and how they are held, the drafter,
threads, PyTorch. It is measured anew when it is old, or of another version of treespec
or another machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treespec.decoder import SpeculativeDecoder
from treespec.environment import cpu_model, package_version
from treespec.errors import TreespecError
from treespec.fitting import Size, Timings, medians
from treespec.forwards import draft_models
from treespec.models.store import cache_root
from treespec.profile import Machine, Point, Profile
from treespec.roofline import measure_roofline
from treespec.timings import time_costs

MAX_AGE_S = 30 * 24 * 3600
"""Seconds after which a profile is measured anew."""
_OF_MODEL = (
    "hub_id",
    "wheel",
    "revision",
    "sha256",
    "weight_bytes",
    "dtype",
    "quantization",
    "device",
    "attn_implementation",
)
"""What of a model's description its costs depend on."""


def _alone() -> bool:
    return True


def _to_nobody(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class KeptProfile:
    """A profile and where it is kept.

    Attributes:
        profile: The profile.
        path: Its file in the cache.
        is_new: Whether it was measured now.
        note: Why, or how old it is, in a few words.
    """

    profile: Profile
    path: Path
    is_new: bool
    note: str


def kept_profile(
    decoder: SpeculativeDecoder,
    about: Mapping[str, Any],
    *,
    force: bool = False,
    is_alone: Callable[[], bool] = _alone,
    say: Callable[[str], None] = _to_nobody,
) -> KeptProfile:
    """Return the profile for a decoder, measured now unless the cache has one.

    A cache that cannot be written is no failure: the note says so.

    Args:
        decoder: The decoder.
        about: What the costs depend on, from ``about_pair``.
        force: Whether to measure anew whatever is in the cache.
        is_alone: Whether no other job has run beside this one on its devices; what was
            timed beside others is not kept.
        say: Is told at once whether it is reused, or measured and why: that takes long.

    Raises:
        TreespecError: Too few timings are seconds.
    """
    path, machine, now_s = profile_path(about), this_machine(), time.time()
    why = "force=true" if force else "none was kept"
    if not force and path.is_file():
        try:
            found = Profile.read(path)
        except TreespecError:
            why = "the one that was kept cannot be read"
        else:
            stale = stale_reason(found, machine, now_s)
            if dict(found.about) != json.loads(json.dumps(about, default=str)):
                stale = "the one that was kept is of something else"
            if stale is None:
                age_s = max(0.0, now_s - found.measured_at)
                note = f"reused, {_age(age_s)} old"
                say(f"costs of forwards: {note}")
                return KeptProfile(found, path, is_new=False, note=note)
            why = stale
    say(f"timing forwards, some 10 to 40 seconds: {why}")
    profile = measure_profile(decoder, about)
    note = f"measured now: {why}"
    trouble = _write(profile, path) if is_alone() else "other jobs ran beside it"
    if trouble is not None:
        note = f"{note}; not kept: {trouble}"
    say(f"costs of forwards: {note}")
    return KeptProfile(profile, path, is_new=True, note=note)


def _write(profile: Profile, path: Path) -> str | None:
    """Write a profile; return what was in the way."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.write(path)
    except OSError as error:
        return error.strerror or str(error)
    return None


def measure_profile(decoder: SpeculativeDecoder, about: Mapping[str, Any]) -> Profile:
    """Measure a profile; takes some 20 seconds for large models, less for small ones.

    Raises:
        TreespecError: Too few timings are seconds.
    """
    timings = time_costs(decoder)
    return Profile(
        costs=timings.costs(),
        target=_points(timings.target),
        draft=_points(timings.draft),
        target_roofline=measure_roofline([decoder.target]),
        draft_roofline=measure_roofline(draft_models(decoder.drafter)),
        about=about,
        machine=this_machine(),
        measured_at=time.time(),
    )


def about_pair(
    models: Mapping[str, Mapping[str, Any]], drafter: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what costs depend on: models, drafter, threads, PyTorch, devices.

    Args:
        models: The models' descriptions, by ``environment.describe_model``.
        drafter: The drafter's configuration.
    """
    return {
        "models": {
            name: {key: described.get(key) for key in _OF_MODEL}
            for name, described in models.items()
        },
        "drafter": dict(drafter),
        "num_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": [
            torch.cuda.get_device_name(index)
            for index in range(torch.cuda.device_count())
        ],
    }


def profile_path(about: Mapping[str, Any]) -> Path:
    """Return the file in the cache that a profile of this is kept in."""
    encoded = json.dumps(about, sort_keys=True, default=str).encode()
    key = hashlib.sha256(encoded).hexdigest()[:16]
    return cache_root() / "profiles" / f"{key}.json"


def this_machine() -> Machine:
    """Return where this process runs."""
    return Machine(cpu_model(), package_version("treespec"))


def stale_reason(profile: Profile, machine: Machine, now_s: float) -> str | None:
    """Return why a profile should be measured anew; ``None`` if it need not be.

    Args:
        profile: The profile.
        machine: Where it would be used.
        now_s: When, in seconds since 1970.
    """
    if profile.machine.treespec != machine.treespec:
        return f"the one that was kept is of treespec {profile.machine.treespec}"
    if profile.machine.cpu != machine.cpu:
        return f"the one that was kept is of another machine ({profile.machine.cpu})"
    age_s = now_s - profile.measured_at
    if not -MAX_AGE_S < age_s < MAX_AGE_S:
        return f"the one that was kept is {_age(abs(age_s))} old"
    return None


def _points(timings: Timings) -> tuple[Point, ...]:
    found = medians(timings)
    return tuple(_point(size, timings[size], found[size]) for size in sorted(found))


def _point(size: Size, seconds: Sequence[float], median_s: float) -> Point:
    return Point(size.num_rows, size.length, len(seconds), median_s)


def _age(age_s: float) -> str:
    for unit, unit_s in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s:.0f} seconds"
