"""Rules of a study's settings, so that a mistake costs no measurement.

A rule is called with a setting's name, its value and the study's jobs; it refuses what
the answer could not be made with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from treespec.errors import TreespecError, unknown_name

PREFIX = "settings."
"""What the name of a setting begins with on the command line."""

Rule = Callable[[str, Any, Collection[str]], None]


def check_settings(
    settings: Mapping[str, Any], rules: Mapping[str, Rule], jobs: Collection[str]
) -> None:
    """Refuse settings of which one is missing, unknown or wrong.

    Args:
        settings: By name.
        rules: By name, what each must be.
        jobs: Names of the study's jobs.

    Raises:
        TreespecError: Names the setting and its rule.
    """
    record(**rules)(PREFIX.rstrip("."), settings, jobs)


def number(low: float = -math.inf, high: float = math.inf) -> Rule:
    """Return the rule of a finite number within bounds."""
    bounds = [f">= {low:g}"] * (low > -math.inf) + [f"<= {high:g}"] * (high < math.inf)
    said = " ".join(["a number", " and ".join(bounds)]).strip()

    def check(name: str, value: Any, jobs: Collection[str]) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not low <= value <= high:
            raise _wrong(name, said, value)

    return check


def positive(name: str, value: Any, jobs: Collection[str]) -> None:
    """Refuse what is no number above 0."""
    number()(name, value, jobs)
    if value <= 0:
        raise _wrong(name, "a number > 0", value)


def whole(name: str, value: Any, jobs: Collection[str]) -> None:
    """Refuse what is no whole number from 1 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(name, "a whole number >= 1", value)


def text(name: str, value: Any, jobs: Collection[str]) -> None:
    """Refuse what is no text in one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise _wrong(name, "a text in one line", value)


def job(name: str, value: Any, jobs: Collection[str]) -> None:
    """Refuse what is no job of the study."""
    if value not in jobs:
        raise unknown_name(f"job in {name}", str(value), list(jobs))


def many(rule: Rule, least: int = 0) -> Rule:
    """Return the rule of a list, all of whose members keep a rule."""
    said = "a list" + f" of {least} or more" * (least > 0)

    def check(name: str, value: Any, jobs: Collection[str]) -> None:
        if not isinstance(value, list) or len(value) < least:
            raise _wrong(name, said, value)
        for place, member in enumerate(value):
            rule(f"{name}[{place}]", member, jobs)

    return check


def named(rule: Rule) -> Rule:
    """Return the rule of values under names of any kind."""

    def check(name: str, value: Any, jobs: Collection[str]) -> None:
        for key, member in _mapping(name, value).items():
            rule(f"{name}.{key}", member, jobs)

    return check


def record(**rules: Rule) -> Rule:
    """Return the rule of values under these very names."""

    def check(name: str, value: Any, jobs: Collection[str]) -> None:
        found = _mapping(name, value)
        for key in found:
            if key not in rules:
                raise unknown_name(f"key of {name}", str(key), list(rules))
        for key, rule in rules.items():
            if key not in found:
                raise TreespecError(f"{name}.{key} is missing: {name} needs it")
            rule(f"{name}.{key}", found[key], jobs)

    return check


def _mapping(name: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(name, "keys with values, {key: value}", value)
    return value


def _wrong(name: str, rule: str, value: Any) -> TreespecError:
    return TreespecError(f"{name} must be {rule}, got {value!r}")
