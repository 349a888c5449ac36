"""What ``treespec calibrate`` measures: how often each rank is accepted, what it costs.

A plain record and its file; nothing here measures anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treespec.costs import Costs
from treespec.errors import TreespecError
from treespec.files import MALFORMED, read_json, write_json

SCHEMA = 2
"""Number of the file's layout; a file of another one is refused."""
_WAY_OUT = "write it anew with treespec calibrate"


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often the k-th child of a node is the accepted one, depth by depth.

    Only the first children are followed: depth d counts if ranks 0 were accepted above
    it. Acceptance depends on the pair, the rule, the sampling and the prompts: measure
    it again for each.

    Attributes:
        reached: Nodes at depth d - 1 whose children were up for acceptance; entry 0
            is the root's.  # [D]
        accepted: Of these, how often the child of each rank was the accepted
            one.  # [D][K]
        costs: What forwards take; ``None`` if that was not measured.
        about: What was measured: JSON-ready words for whoever reads the file.
    """

    reached: tuple[int, ...]
    accepted: tuple[tuple[int, ...], ...]
    costs: Costs | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the counts fit together."""
        if not self.reached or len(self.reached) != len(self.accepted):
            raise TreespecError(
                f"reached has {len(self.reached)} depths and accepted has "
                f"{len(self.accepted)}; both must have the same, at least one"
            )
        if len({len(row) for row in self.accepted}) != 1 or not self.accepted[0]:
            raise TreespecError(
                "accepted must have the same number of ranks at every depth, at least "
                f"one, got {[len(row) for row in self.accepted]}"
            )
        for reached, row in zip(self.reached, self.accepted, strict=True):
            if not all(map(_is_count, (reached, *row))) or sum(row) > reached:
                raise TreespecError(
                    f"accepted must count at most as many as were reached, got "
                    f"{list(row)} of {reached}"
                )
        if self.reached[0] == 0:
            raise TreespecError(
                "reached is 0 at depth 1: no step was measured; give more prompts or "
                "more max_new_tokens"
            )

    @property
    def depth(self) -> int:
        """D, the deepest depth that was tried."""
        return len(self.reached)

    @property
    def num_ranks(self) -> int:
        """K, the children of one node that were tried."""
        return len(self.accepted[0])

    @property
    def acceptance(self) -> tuple[float, ...]:  # [K]
        """Probability that the child of each rank is the accepted one.

        All depths pooled: Sequoia's acceptance vector (2402.12374).
        """
        num_reached = sum(self.reached)
        return tuple(
            sum(ranks) / num_reached for ranks in zip(*self.accepted, strict=True)
        )

    @property
    def acceptance_by_depth(self) -> tuple[tuple[float, ...], ...]:  # [D][K]
        """The same for each depth apart (Medusa's accuracies, 2401.10774).

        A depth that was never reached has the pooled probabilities.
        """
        return tuple(
            tuple(count / reached for count in row) if reached else self.acceptance
            for reached, row in zip(self.reached, self.accepted, strict=True)
        )

    def write(self, path: Path) -> None:
        """Write the file, so that it is there entirely or not at all.

        Raises:
            OSError: The disk refuses.
        """
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "reached": list(self.reached),
            "accepted": [list(row) for row in self.accepted],
            "acceptance": list(self.acceptance),  # for the reader; not read back
            "costs": None if self.costs is None else self.costs.to_json(),
            "about": dict(self.about),
        }
        write_json(path, content)

    @classmethod
    def read(cls, path: Path) -> Calibration:
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
            costs = content["costs"]
            return cls(
                reached=tuple(content["reached"]),
                accepted=tuple(tuple(row) for row in content["accepted"]),
                costs=None if costs is None else Costs.from_json(costs),
                about=_mapping(content.get("about")),
            )
        except TreespecError as error:
            raise TreespecError(f"{path}: {error}; {_WAY_OUT}") from error
        except MALFORMED as error:
            raise TreespecError(
                f"{path} is no calibration ({type(error).__name__}: {error}); "
                f"{_WAY_OUT}"
            ) from error


def _mapping(about: object) -> Mapping[str, Any]:
    return about if isinstance(about, Mapping) else {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
