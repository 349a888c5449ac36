"""A small language model as drafter (2211.17192, 2302.01318)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from treespec.draft import AbstractDraft, DenseDraft, SparseDraft, listed
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
)
from treespec.errors import TreespecError, require_integer
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import CachedSequence, Feed, ModelSession
from treespec.tree import TokenTree


@dataclass(frozen=True, slots=True)
class DraftModel(AbstractDrafter):
    """Drafts with a model of its own: a whole frontier, of all requests, per forward.

    With a ``context`` it begins in the midst of a text, as if nothing had stood before:
    what it reads has the positions 0, 1, ..., so that its first token can be the sink
    that attention wants, and a draft with few positions lasts longer. Text that it has
    read stays, and more is read behind it. When more than ``context`` tokens are to be
    read at once, which happens if it was not asked for long, it begins anew.

    Attributes:
        model: The draft model; it must read the target's token ids.
        temperature: Temperature at which sampled children are drawn, below 1e-5 the
            likeliest; ``None``: that of the request. Ranking is never tempered.
        context: Most tokens of the text that it reads at once: the last ones;
            ``None``: all. What is left unread costs nothing, and guesses get worse.
    """

    source_names = ("draft_model",)
    hidden_layers = ()

    model: AbstractLanguageModel
    temperature: float | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        """Check that there is a model, and that the numbers are such."""
        if not isinstance(self.model, AbstractLanguageModel):
            raise TreespecError(
                f"drafter.model must be a language model, got {self.model!r}; write "
                "drafter.model=pair.draft"
            )
        given = self.temperature
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is not None and not (is_number and 0 <= given < math.inf):
            raise TreespecError(
                f"drafter.temperature must be a finite number >= 0, got {given!r}; use "
                "null for the temperature of the request"
            )
        if self.context is not None:
            require_integer("drafter.context", self.context, 1, ", or null for all")

    @property
    def runs_model(self) -> bool:
        """It always does."""
        return True

    def start(self, setting: DraftSetting) -> DraftModelSession:
        """Return a session with slots for all requests."""
        return DraftModelSession(self.model, setting, self.temperature, self.context)


class DraftModelSession(AbstractDraftSession):
    """Tree attention in the draft model's own slots."""

    def __init__(
        self,
        model: AbstractLanguageModel,
        setting: DraftSetting,
        temperature: float | None = None,
        context: int | None = None,
    ) -> None:
        """Make a pool as large as the target's."""
        self.session = ModelSession(model, setting.num_slots)
        self.sequences: dict[int, CachedSequence] = {}
        self._setting, self._temperature, self._context = setting, temperature, context

    @property
    def num_forwards(self) -> int:
        """Forwards of the draft model so far."""
        return self.session.num_forwards

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Reserve slots; the prompt is fed with the first expansion."""
        tokens = self._readable(prompt[self._first_to_read(len(prompt)) :])
        sequence = self.session.admit(tokens, num_slots)
        assert sequence is not None, "the draft's pool is as large as the target's"
        self.sequences[request] = sequence

    def num_unread(self, request: int) -> int:
        """Return how many committed tokens the model has not read and will read."""
        return self.sequences[request].num_pending

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return the draft model's law at every frontier node, after one forward.

        The parent of every node must be the root, or have been asked about before, or
        stand earlier in the same frontier. A request whose next position is beyond the
        draft model's context gets no candidates, nor does one that no forward is to
        be spent on.
        """
        readable = [f for f in frontiers if f.may_forward and self._fits(f)]
        feeds = []
        for frontier in readable:
            sequence = self.sequences[frontier.request]
            at_root = frontier.depth == 0
            feeds.append(
                Feed(sequence)
                if at_root
                else Feed(sequence, self._readable_tree(frontier.tree), frontier.nodes)
            )
        outputs = self.session.run(feeds) if feeds else []
        drafts: dict[int, AbstractDraft] = {
            # A root that nobody asked about was pending, and comes first.
            frontier.request: DenseDraft(
                self._aligned(output.logits[-frontier.nodes.shape[0] :]),
                temperature=self._temperature,
            )
            for frontier, output in zip(readable, outputs, strict=True)
        }
        return [drafts.get(f.request, self._nothing(f)) for f in frontiers]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Keep the slots of accepted nodes; what was not fed becomes pending."""
        sequence = self.sequences[request]
        tokens = self._readable(feedback.tokens)
        self.session.commit(sequence, feedback.node_ids, tokens)
        first = self._first_to_read(sequence.num_pending)
        if first:
            self.session.restart(sequence, len(sequence.line) + first)

    def release(self, request: int) -> None:
        """Give the request's slots back."""
        self.session.release(self.sequences.pop(request))

    def _first_to_read(self, num_unread: int) -> int:
        """Return how many unread tokens are passed over."""
        return 0 if self._context is None else max(num_unread - self._context, 0)

    def _fits(self, frontier: Frontier) -> bool:
        length = len(self.sequences[frontier.request].tokens) + frontier.depth
        return length <= self.session.model.max_positions

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        """Replace tokens that only the target has by the last one of the draft.

        Its embedding has no row for them, and what it guesses next is but a guess.
        """
        last = self.session.model.vocab_size - 1
        return [min(token, last) for token in tokens]

    def _readable_tree(self, tree: TokenTree) -> TokenTree:
        size = self.session.model.vocab_size
        if size >= self._setting.vocab_size:
            return tree
        return replace(tree, tokens=tree.tokens.clamp(max=size - 1))

    def _aligned(self, logits: Tensor) -> Tensor:
        """Crop or pad the logits to the target's vocabulary.

        Embedding tables are padded to different widths (151,936 rows against 152,064)
        over the same tokens. A token that only the target has gets -inf: it stays
        reachable through the residual.
        """
        missing = self._setting.vocab_size - logits.shape[-1]
        if missing == 0:
            return logits
        return F.pad(logits, (0, missing), value=-torch.inf)

    def _nothing(self, frontier: Frontier) -> SparseDraft:
        return listed([()] * frontier.nodes.shape[0], self._setting.device)
