"""Times a decoder's forwards and what its steps do outside of them.

Sizes take turns: each is timed once per turn, so that a noisy moment hits one timing of
many sizes and not all timings of one. How many turns a size takes, and which sizes
there are, depends on how fast the models are: all together take some 20 seconds where a
plain forward takes 125 ms and a draft forward 30 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low

import torch

from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.costs import Costs
from treespec.decoder import SpeculativeDecoder
from treespec.draft import AbstractDraft, DenseDraft, listed
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.errors import TreespecError
from treespec.fitting import (
    LEAST_SIZES,
    Size,
    Timings,
    fit_curve,
    valid_seconds,
)
from treespec.forwards import Forwards, draft_models, star
from treespec.models.base import AbstractLanguageModel
from treespec.policies import BestFirst
from treespec.stopwatch import Stopwatch
from treespec.tree import root_tree
from treespec.verifiers import TreeAttention

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of the forwards that are timed."""
COARSE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Those of a model that takes ``COARSE_FROM_S`` or longer for one row."""
COARSE_FROM_S = 0.05
LENGTHS = (64, 512, 1536)
"""Committed tokens before them; behind the first length all rows are timed."""
FAR_ROWS = (1, 8, 32)
"""Rows behind the others."""
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Nodes of the expansions that are timed if the drafter runs no model."""
TOO_SLOW = 6
"""Nothing slower than so many plain forwards of the target is timed: no tree gains
that much."""
MOST_TURNS, LEAST_TURNS = 7, 2
"""How often a size is timed at most, and at least."""
BUDGET_S = 7.0
"""Seconds for all sizes of the target, and for all of the drafter: none takes a further
turn that has had its share, once it had ``LEAST_TURNS``."""
BUDGET = Constant(max_depth=4, max_width=4, max_nodes=8)
"""Trees of the steps that are timed."""
NUM_STEPS = 8
"""Tokens that are decoded to time steps."""
NUM_CANDIDATES = 8
"""Guesses below a node, in these steps."""


@dataclass(frozen=True, slots=True)
class CostTimings:
    """Everything that was timed.

    Attributes:
        target: Seconds of target forwards.
        draft: Seconds of draft forwards, or of expansions without a model.
        steps_s: Seconds that steps took outside of forwards.
    """

    target: Timings
    draft: Timings
    steps_s: tuple[float, ...]

    def costs(self) -> Costs:
        """Return what they are best described by.

        Raises:
            TreespecError: Too few of them are seconds.
        """
        steps_s = valid_seconds(self.steps_s)
        if not steps_s:
            raise TreespecError(
                f"steps outside of forwards: none of {len(self.steps_s)} timings is "
                "finite and > 0; is the clock of this machine sound? measure again "
                "with treespec profile force=true"
            )
        return Costs(
            fit_curve(self.target, "target forwards"),
            fit_curve(self.draft, "draft forwards"),
            median_low(steps_s),
        )


def measure_costs(decoder: SpeculativeDecoder) -> Costs:
    """Return what a decoder's forwards and steps take.

    Raises:
        TreespecError: Too few timings are seconds.
    """
    return time_costs(decoder).costs()


@torch.inference_mode()
def time_costs(decoder: SpeculativeDecoder) -> CostTimings:
    """Time the forwards of a decoder's target and drafter, and a few steps."""
    target = time_forwards([decoder.target], None)
    plain = valid_seconds(target[min(target)])
    slowest_s = TOO_SLOW * median_low(plain) if plain else None
    models = draft_models(decoder.drafter)
    if models:
        draft = time_forwards(models, slowest_s)
    else:
        draft = _time_expansions(decoder, slowest_s)
    return CostTimings(target, draft, _time_steps(decoder))


def time_forwards(
    models: Sequence[AbstractLanguageModel], slowest_s: float | None
) -> Timings:
    """Time forwards of some models, one after the other as if they were one.

    Args:
        models: The models.
        slowest_s: What is slower is not timed; ``None``: ``TOO_SLOW`` single rows.
    """
    longest = min(model.max_positions for model in models) - 1
    lengths = [n for n in LENGTHS if n <= longest] or [max(1, longest)]
    behind: dict[int, list[Forwards]] = {}
    for length in lengths:
        most = ROWS[-1] if length == lengths[0] else FAR_ROWS[-1]
        texts = [[i % model.vocab_size for i in range(length)] for model in models]
        behind[length] = [
            Forwards(model, text, most - 1)
            for model, text in zip(models, texts, strict=True)
        ]
        for forwards in behind[length]:
            forwards.skip_text()

    def time(size: Size) -> float:
        watch = Stopwatch(models[0].device)
        for forwards in behind[size.length]:
            forwards.run(size.num_rows - 1)
        return watch.total()

    time(Size(1, lengths[0]))  # allocates, chooses kernels
    first = valid_seconds(time(Size(1, lengths[0])) for _ in range(3))
    row_s = median_low(first) if first else math.inf
    rows = COARSE_ROWS if row_s >= COARSE_FROM_S else ROWS
    sizes = [[Size(num_rows, lengths[0]) for num_rows in rows]]
    for length in lengths[1:]:
        sizes.append([Size(num_rows, length) for num_rows in FAR_ROWS])
    return in_turns(sizes, time, slowest_s or TOO_SLOW * row_s)


def in_turns(
    series: Sequence[Sequence[Size]], time: Callable[[Size], float], slowest_s: float
) -> Timings:
    """Return the seconds of all sizes, each timed several times.

    Args:
        series: Sizes that grow; of each series none is timed after the first that is
            too slow, unless it is the only one.
        time: Returns the seconds of one size.
        slowest_s: What is slower is too slow.
    """
    timings: dict[Size, list[float]] = {}
    for sizes in series:
        for place, size in enumerate(sizes):
            timings[size] = [time(size)]
            if timings[size][0] > slowest_s and place + 1 >= LEAST_SIZES:
                timings[size].append(time(size))  # was it the size, or a noisy moment?
                if min(timings[size]) > slowest_s:
                    break
    share_s = BUDGET_S / len(timings)
    for turn in range(1, MOST_TURNS):
        for size, found in timings.items():
            if turn < LEAST_TURNS or _spent_s(found) < share_s:
                found.append(time(size))
    return timings


def _spent_s(seconds: Sequence[float]) -> float:
    """Return what a size has used, as if no timing were an outlier."""
    valid = valid_seconds(seconds)
    return len(valid) * median_low(valid) if valid else 0.0


def _time_expansions(decoder: SpeculativeDecoder, slowest_s: float | None) -> Timings:
    """Time expansions below the first nodes of a tree, with a drafter of any kind."""
    target = decoder.target
    device, length = target.device, min(LENGTHS[0], max(1, target.max_positions - 2))
    text = [i % target.vocab_size for i in range(length)]
    num_slots = length + 1 + WIDTHS[-1]
    session = decoder.drafter.cold().start(
        DraftSetting(target.vocab_size, device, decoder.eos_ids, num_slots)
    )

    def time(size: Size) -> float:
        session.admit(0, text, num_slots)
        tree = star(text[-1], size.num_rows, device)
        nodes = torch.arange(tree.size, device=device)
        root = root_tree(text[-1], tree.proposal, device)
        session.expand([Frontier(0, root, nodes[:1], 0)])
        watch = Stopwatch(device)
        session.expand([Frontier(0, tree, nodes[1:], 1)])
        seconds = watch.total()
        session.release(0)
        return seconds

    sizes = [Size(width, length) for width in WIDTHS]
    return in_turns([sizes], time, math.inf if slowest_s is None else slowest_s)


def _time_steps(decoder: SpeculativeDecoder) -> tuple[float, ...]:
    """Return the seconds that steps take outside of forwards.

    Of a decoder whose drafter answers at once, with answers of the kind that the
    given one gives, and whose trees are of middling size.
    """
    target = decoder.target
    length = min(LENGTHS[0], max(1, target.max_positions // 2))
    stand_in = SpeculativeDecoder(
        target=target,
        drafter=_AtOnce(decoder.drafter.runs_model),
        policy=BestFirst(),
        acceptance=Greedy(),
        verifier=TreeAttention(),
        controller=BUDGET,
    )
    text = [i % target.vocab_size for i in range(length)]
    (result,) = stand_in.generate([text], max_new_tokens=NUM_STEPS + 1)
    return tuple(record.step_s - record.verify_s for record in result.steps)


@dataclass(frozen=True, slots=True)
class _AtOnce(AbstractDrafter):
    """Answers without any work, so that what remains is that of the loop.

    Attributes:
        is_dense: Whether with a law per node, as models do, or a few candidates.
    """

    source_names = ("at_once",)
    hidden_layers = ()

    is_dense: bool

    def start(self, setting: DraftSetting) -> _AtOnceSession:
        """Return a session with one law for all nodes."""
        return _AtOnceSession(setting, self.is_dense)


class _AtOnceSession(AbstractDraftSession):
    num_forwards = 0

    def __init__(self, setting: DraftSetting, is_dense: bool) -> None:
        self._device, self._is_dense = setting.device, is_dense
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(1, setting.vocab_size, generator=generator)
        self._logits = logits.to(setting.device)
        best = logits.log_softmax(-1).topk(min(NUM_CANDIDATES, setting.vocab_size))
        self._listed = list(
            zip(best.indices[0].tolist(), best.values[0].tolist(), strict=True)
        )

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Do nothing."""

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return the same law for every node."""
        return [self._draft(frontier.nodes.shape[0]) for frontier in frontiers]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Do nothing."""

    def release(self, request: int) -> None:
        """Do nothing."""

    def _draft(self, num_nodes: int) -> AbstractDraft:
        if self._is_dense:
            return DenseDraft(self._logits.expand(num_nodes, -1))
        return listed([self._listed] * num_nodes, self._device)
