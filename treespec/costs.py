"""What forwards and steps cost: curves of seconds, and their file.

Plain records; nothing here measures anything. ``fitting`` makes a curve of timings,
``closed_form`` reads break-even points from two of them.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from treespec.errors import TreespecError, require_integer
from treespec.files import MALFORMED, read_json, write_json

SCHEMA = 1
"""Number of the file's layout; a file of another one is refused."""
_WAY_OUT = "write it anew with treespec profile"


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a forward against its rows and the length of the text before them.

    Between its knots it is a line. Beyond the last one it goes on as steeply as over
    the last doubling of rows; below the first one it is flat. Every token that a text
    is longer than ``length`` adds what a second such curve says. So it is finite and
    positive, and falls nowhere. A shorter text costs as much as one of that length.

    Attributes:
        rows: Rows at the knots, ascending.  # [K]
        seconds: Seconds there behind a text of ``length`` tokens, never falling.  # [K]
        length: Committed tokens before the rows at the knots.
        token_rows: Rows at the knots of the second curve, ascending.  # [M]
        token_s: Seconds there that a further token of text costs, at least 0 and never
            falling.  # [M]
        error: Root mean square of what measured medians differ by from the curve, as
            a share of them.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    length: int = 0
    token_rows: tuple[int, ...] = (1,)
    token_s: tuple[float, ...] = (0.0,)
    error: float = 0.0

    def __post_init__(self) -> None:
        """Check that it is a curve."""
        _check_knots("seconds", self.rows, self.seconds)
        _check_knots("token_s", self.token_rows, self.token_s)
        if self.seconds[0] <= 0:
            raise TreespecError(
                f"seconds of a cost curve must be > 0, got {list(self.seconds)}"
            )
        require_integer("length of a cost curve", self.length, 0)
        if not (_is_finite(self.error) and self.error >= 0):
            raise TreespecError(
                f"error of a cost curve must be finite and >= 0, got {self.error!r}"
            )

    @classmethod
    def through(cls, seconds: Mapping[int, float]) -> CostCurve:
        """Return the curve through known seconds, rows -> seconds."""
        rows = tuple(sorted(seconds))
        return cls(rows, tuple(seconds[num_rows] for num_rows in rows))

    def at(self, num_rows: int, length: int = 0) -> float:
        """Return the seconds of a forward.

        Args:
            num_rows: Its rows.
            length: Committed tokens before them.
        """
        seconds = _along(self.rows, self.seconds, num_rows)
        if length <= self.length:
            return seconds
        token_s = _along(self.token_rows, self.token_s, num_rows)
        return seconds + (length - self.length) * token_s


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of a step cost on one machine, for one pair of models.

    Attributes:
        target_curve: A forward of the target; a tree of N nodes besides its root has
            1 + N rows.
        draft_curve: A forward of what the drafter runs, be it a draft model or the
            target's lower layers: as many rows as nodes are expanded, and as committed
            tokens were not read yet. Without a model, one expansion of so many nodes.
        step_s: Seconds of a step outside of forwards: building, accepting, committing.
    """

    target_curve: CostCurve
    draft_curve: CostCurve
    step_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the seconds of a step."""
        if not (_is_finite(self.step_s) and self.step_s >= 0):
            raise TreespecError(f"step_s must be finite and >= 0, got {self.step_s!r}")

    @classmethod
    def through(
        cls,
        target_s: Mapping[int, float],
        draft_s: Mapping[int, float],
        step_s: float = 0.0,
    ) -> Costs:
        """Return costs through known seconds, rows -> seconds, for texts of any length.

        Raises:
            TreespecError: They fall somewhere, or are no seconds.
        """
        curves = CostCurve.through(target_s), CostCurve.through(draft_s)
        return cls(*curves, step_s)

    def target(self, num_rows: int, length: int = 0) -> float:
        """Return the seconds of a target forward.

        Args:
            num_rows: Its rows: the nodes of a tree and its root.
            length: Committed tokens before them.
        """
        return self.target_curve.at(num_rows, length)

    def draft(self, num_rows: int, length: int = 0) -> float:
        """Return the seconds of a draft forward.

        Args:
            num_rows: Its rows: nodes that are expanded, and tokens that it reads.
            length: Committed tokens before them.
        """
        return self.draft_curve.at(num_rows, length)

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        return {
            "schema": SCHEMA,
            "target": asdict(self.target_curve),
            "draft": asdict(self.draft_curve),
            "step_s": self.step_s,
        }

    @classmethod
    def from_json(cls, content: object) -> Costs:
        """Read what ``to_json`` made, after it was a file.

        Raises:
            TreespecError: It is of another schema, or no costs.
        """
        if not isinstance(content, Mapping):
            raise TreespecError(f"costs must be an object, got {content!r}")
        if content.get("schema") != SCHEMA:
            raise TreespecError(
                f"costs have schema {content.get('schema')!r}, but this version of "
                f"treespec reads schema {SCHEMA}"
            )
        try:
            return cls(
                _curve(content["target"]), _curve(content["draft"]), content["step_s"]
            )
        except TreespecError:
            raise
        except MALFORMED as error:
            raise TreespecError(
                f"costs cannot be read ({type(error).__name__}: {error})"
            ) from error

    def write(self, path: Path) -> None:
        """Write the file, so that it is there entirely or not at all.

        Raises:
            OSError: The disk refuses.
        """
        write_json(path, self.to_json())

    @classmethod
    def read(cls, path: Path | str) -> Costs:
        """Read a file that ``write`` has written, or a profile, which has costs in it.

        Raises:
            TreespecError: There is none, or it is something else.
        """
        content = read_json(Path(path), _WAY_OUT)
        try:
            return cls.from_json(content.get("costs", content))
        except TreespecError as error:
            raise TreespecError(f"{path}: {error}; {_WAY_OUT}") from error


def _curve(content: Mapping[str, Any]) -> CostCurve:
    return CostCurve(
        rows=tuple(content["rows"]),
        seconds=tuple(content["seconds"]),
        length=content["length"],
        token_rows=tuple(content["token_rows"]),
        token_s=tuple(content["token_s"]),
        error=content["error"],
    )


def _along(rows: Sequence[int], values: Sequence[float], num_rows: int) -> float:
    """Return the value of a broken line; beyond its end it rises as before it.

    As over the last doubling of rows, that is: that two neighbours are equal proves
    nothing about what comes.
    """
    if num_rows <= rows[0]:
        return values[0]
    high = bisect_left(rows, num_rows)
    if high < len(rows):
        low = high - 1
    else:
        high = len(rows) - 1
        low = max(0, bisect_right(rows, rows[-1] // 2) - 1)
    if low == high:
        return values[high]
    slope = (values[high] - values[low]) / (rows[high] - rows[low])
    return values[high] + (num_rows - rows[high]) * slope


def _check_knots(name: str, rows: Sequence[int], values: Sequence[float]) -> None:
    if not rows or len(rows) != len(values):
        raise TreespecError(
            f"a cost curve needs as many {name} as rows, at least one, got "
            f"{len(values)} and {len(rows)}"
        )
    for num_rows in rows:
        require_integer("rows of a cost curve", num_rows, 1)
    if not all(_is_finite(value) and value >= 0 for value in values):
        raise TreespecError(
            f"{name} of a cost curve must be finite and >= 0, got {list(values)}"
        )
    if any(low >= high for low, high in pairwise(rows)):
        raise TreespecError(f"rows of a cost curve must rise, got {list(rows)}")
    if any(low > high for low, high in pairwise(values)):
        raise TreespecError(f"{name} of a cost curve must not fall, got {list(values)}")


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= sys.float_info.max  # an integer may be larger than any float
