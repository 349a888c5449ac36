"""Single forwards of a target and of a drafter, for warm-ups and for measured costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch

from treespec.calibration import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftSetting, Frontier
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import Feed, ModelSession
from treespec.stopwatch import Stopwatch
from treespec.tree import Layer, TokenTree, root_tree
from treespec.types import ProposalKind

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of the target's forwards that are timed."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Nodes of the drafter's expansions that are timed."""
NUM_REPEATS = 5
TOO_SLOW = 12
"""Nothing slower than so many plain forwards is timed: no tree gains that much."""
TEXT_LENGTH = 64
"""Tokens of the text that forwards are timed on, its end."""


class TargetForwards:
    """Forwards of a target over the last token of a text and children of it."""

    def __init__(
        self, target: AbstractLanguageModel, text: Sequence[int], most_nodes: int
    ) -> None:
        """Reserve slots for a text and ``most_nodes`` children of its last token."""
        self._session = ModelSession(target, len(text) + most_nodes)
        sequence = self._session.admit(text, len(text) + most_nodes)
        assert sequence is not None
        self._sequence = sequence

    def run(self, num_nodes: int) -> None:
        """Feed the last token, and before it whatever of the text is not fed yet."""
        sequence, device = self._sequence, self._session.model.device
        last = sequence.tokens[-1]
        tree = star(last, num_nodes, device)
        nodes = torch.arange(1, tree.size, device=device)
        self._session.run(
            [Feed(sequence, tree, nodes) if num_nodes else Feed(sequence)]
        )
        self._session.commit(sequence, (), ())
        self._session.rewind(sequence, len(sequence.tokens) - 1)
        sequence.tokens.append(last)


@torch.inference_mode()
def measure_costs(decoder: SpeculativeDecoder, text: Sequence[int]) -> Costs:
    """Return what forwards of a decoder's target and drafter take.

    Medians of ``NUM_REPEATS``, so that a slow first one does not show. Sizes grow until
    one is ``TOO_SLOW``.

    Args:
        decoder: The decoder.
        text: A text of the kind that will be decoded; at least one token.
    """
    target = decoder.target
    text = text[: target.max_positions - 2][-TEXT_LENGTH:]
    forwards = TargetForwards(target, text, ROWS[-1] - 1)
    forwards.run(0)

    def time_rows(num_rows: int) -> float:
        watch = Stopwatch(target.device)
        forwards.run(num_rows - 1)
        return watch.total()

    target_s = _medians(ROWS, time_rows, limit_s=None)
    drafting = _Drafting(decoder, text)
    draft_s = _medians(WIDTHS, drafting.time, TOO_SLOW * target_s[1])
    return Costs(target_s, draft_s)


class _Drafting:
    """Expansions by a drafter, below the first nodes of a tree."""

    def __init__(self, decoder: SpeculativeDecoder, text: Sequence[int]) -> None:
        self._text, self._device = text, decoder.target.device
        self._num_slots = len(text) + 1 + WIDTHS[-1]
        self._session = decoder.drafter.cold().start(
            DraftSetting(
                vocab_size=decoder.target.vocab_size,
                device=self._device,
                eos_ids=decoder.eos_ids,
                num_slots=self._num_slots,
            )
        )

    def time(self, width: int) -> float:
        """Return the seconds of expanding ``width`` children of the root at once."""
        session = self._session
        session.admit(0, self._text, self._num_slots)
        tree = star(self._text[-1], width, self._device)
        nodes = torch.arange(tree.size, device=self._device)
        root = root_tree(self._text[-1], tree.proposal, self._device)
        session.expand([Frontier(0, root, nodes[:1], 0)])
        watch = Stopwatch(self._device)
        session.expand([Frontier(0, tree, nodes[1:], 1)])
        seconds = watch.total()
        session.release(0)
        return seconds


def star(token: int, num_nodes: int, device: torch.device) -> TokenTree:
    """Return a root with ``num_nodes`` children, all of the same token."""
    zeros = torch.zeros(num_nodes, dtype=torch.int64, device=device)
    layer = Layer(
        parents=zeros,
        tokens=zeros + token,
        draft_logprobs=zeros.float(),
        sources=zeros,
    )
    tree = root_tree(token, ProposalKind.DETERMINISTIC, device)
    return tree.extend(layer, zeros[:1])


def _medians(
    sizes: Sequence[int], time: Callable[[int], float], limit_s: float | None
) -> dict[int, float]:
    """Return the median seconds of each size, up to the first that is too slow."""
    found: dict[int, float] = {}
    for size in sizes:
        found[size] = median(time(size) for _ in range(NUM_REPEATS))
        if found[size] > (limit_s or TOO_SLOW * found[sizes[0]]):
            break
    return found
