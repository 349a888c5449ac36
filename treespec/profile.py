"""What was measured of a pair's forwards on one machine: a record and its file.

Nothing here measures anything; ``profile_cache`` keeps profiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.costs import Costs
from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json, write_json
from treespec.roofline import Roofline

SCHEMA = 1
"""Number of the file's layout; a file of another one is measured anew."""
_WAY_OUT = "measure it anew with treespec profile force=true"


@dataclass(frozen=True, slots=True)
class Point:
    """A median that was measured.

    Attributes:
        num_rows: Rows of the forward.
        length: Committed tokens before them.
        num_timings: How often it was timed.
        seconds: The median.
    """

    num_rows: int
    length: int
    num_timings: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What a profile is thrown away for when it differs.

    Attributes:
        cpu: Name of the CPU.
        treespec: Version of treespec.
    """

    cpu: str | None
    treespec: str | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured for one pair.

    Attributes:
        costs: What forwards and steps cost.
        target: The medians of the target's forwards.
        draft: Those of the drafter's.
        target_roofline: The machine's limit for the target, if it is known.
        draft_roofline: That for what the drafter runs.
        about: What it depends on; its hash is the key.
        machine: Where it was measured.
        measured_at: When, in seconds since 1970.
    """

    costs: Costs
    target: tuple[Point, ...]
    draft: tuple[Point, ...]
    target_roofline: Roofline | None
    draft_roofline: Roofline | None
    about: Mapping[str, Any]
    machine: Machine
    measured_at: float

    def write(self, path: Path) -> None:
        """Write the file, so that it is there entirely or not at all.

        Raises:
            OSError: The disk refuses.
        """
        rooflines = self.target_roofline, self.draft_roofline
        target, draft = (None if r is None else r.to_json() for r in rooflines)
        write_json(
            path,
            {
                "schema": SCHEMA,
                "measured_at": self.measured_at,
                "cpu": self.machine.cpu,
                "treespec": self.machine.treespec,
                "about": dict(self.about),
                "costs": self.costs.to_json(),
                "target": [_row(point) for point in self.target],
                "draft": [_row(point) for point in self.draft],
                "target_roofline": target,
                "draft_roofline": draft,
            },
        )

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Read a file that ``write`` has written.

        Raises:
            TreespecError: There is none, or it is something else.
        """
        content = read_json(path, _WAY_OUT)
        if content.get("schema") != SCHEMA:
            raise TreespecError(
                f"{path} has schema {content.get('schema')!r}, but this version of "
                f"treespec reads schema {SCHEMA}; {_WAY_OUT}"
            )
        try:
            target, draft = content["target_roofline"], content["draft_roofline"]
            return cls(
                costs=Costs.from_json(content["costs"]),
                target=tuple(_point(row) for row in content["target"]),
                draft=tuple(_point(row) for row in content["draft"]),
                target_roofline=None if target is None else _roofline(target),
                draft_roofline=None if draft is None else _roofline(draft),
                about=_about(content["about"]),
                machine=Machine(content["cpu"], content["treespec"]),
                measured_at=float(content["measured_at"]),
            )
        except TreespecError as error:
            raise TreespecError(f"{path}: {error}; {_WAY_OUT}") from error
        except MALFORMED as error:
            raise TreespecError(
                f"{path} is no profile ({type(error).__name__}: {error}); {_WAY_OUT}"
            ) from error


def _point(row: Sequence[float]) -> Point:
    num_rows, length, num_timings, seconds = row
    sizes = int(num_rows), int(length), int(num_timings)
    return Point(*sizes, _positive(seconds))


def _roofline(content: Mapping[str, float]) -> Roofline:
    return Roofline(
        weight_bytes=int(_positive(content["weight_bytes"])),
        num_macs=int(_positive(content["num_macs"])),
        bytes_per_s=_positive(content["bytes_per_s"]),
        macs_per_s=_positive(content["macs_per_s"]),
    )


def _about(content: object) -> dict[str, Any]:
    if not isinstance(content, dict) or not isinstance(content.get("models", {}), dict):
        raise ValueError("about must say which models it is of")
    return content


def _positive(value: float) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"must be a finite number > 0, got {value!r}")
    return number


def _row(point: Point) -> list[float]:
    return [point.num_rows, point.length, point.num_timings, point.seconds]
