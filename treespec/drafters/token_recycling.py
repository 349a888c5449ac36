"""The target's own runners-up, kept for when the same token comes again (2408.08696).

Verification computes a whole law at every node and uses one token of it. Here the
likeliest few are kept as what may follow the node's token, wherever it stands next: no
draft model, no training, and candidates also where the text repeats nothing. The paper
begins with an empty table; this one begins with the pairs of the prompt.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

from treespec.draft import AbstractDraft, SparseDraft, listed
from treespec.drafters.base import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Frontier,
    Successors,
)
from treespec.errors import TreespecError, require_integer


@dataclass(slots=True)
class RecyclingTable:
    """What the target said last after each token, or else a prompt.

    Lies on the host and holds only tokens that were seen: a table of the whole
    vocabulary would cost megabytes a request, nearly all of it empty.

    Attributes:
        successors: Token -> what follows it, best first, with log-probabilities.
        largest_token: The largest id in it; -1 if it is empty.
    """

    successors: dict[int, list[tuple[int, float]]] = field(
        init=False, default_factory=dict
    )
    largest_token: int = field(init=False, default=-1)

    def read(self, prompt: Sequence[int], most: int) -> None:
        """Take in what follows the tokens of a prompt, where the target said nothing.

        A token that followed n times of N has the probability n / (N + 1).

        Args:
            prompt: Token ids.
            most: Most successors of one token.
        """
        followers: dict[int, Counter[int]] = {}
        for token, follower in pairwise(prompt):
            if token not in self.successors:
                followers.setdefault(token, Counter())[follower] += 1
        for token, counts in followers.items():
            total = counts.total() + 1
            self.successors[token] = [
                (follower, math.log(count / total))
                for follower, count in counts.most_common(most)
            ]
        self.largest_token = max(self.largest_token, *prompt)

    def update(self, successors: Successors) -> None:
        """Replace what follows every verified token.

        Where several nodes carry the same token, the deepest accepted one wins, the
        root included; without an accepted one, the last. What is accepted is text: its
        law was asked in the context that goes on, the others' in one that did not come
        about.
        """
        columns = (successors.after[:, None], successors.tokens)
        rows = torch.cat(columns, dim=1).tolist()  # waits for the device
        logprobs = successors.logprobs.tolist()
        on_line = set(successors.line)
        others = (row for row in range(len(rows)) if row not in on_line)
        for row in (*others, *successors.line):
            after, *tokens = rows[row]
            pairs = zip(tokens, logprobs[row], strict=True)
            self.successors[after] = [pair for pair in pairs if pair[1] > -math.inf]
            self.largest_token = max(self.largest_token, *rows[row])


@dataclass(frozen=True, slots=True)
class TokenRecycling(AbstractDrafter):
    """Proposes what the target found likely when it last saw the same token.

    After a token that only the prompt has had, it proposes what followed there: a
    step's verification says nothing about the prompt, and a first tree needs something.

    Attributes:
        num_successors: Most candidates for one node.
        memory: A table that outlives requests; ``None`` begins every request with an
            empty one.
    """

    source_names = ("token_recycling",)
    hidden_layers = ()

    num_successors: int = 8
    memory: RecyclingTable | None = None

    def __post_init__(self) -> None:
        """Check the number."""
        require_integer("drafter.num_successors", self.num_successors, 1)
        if not isinstance(self.memory, RecyclingTable | None):
            raise TreespecError(
                f"drafter.memory must be null or a RecyclingTable, got {self.memory!r};"
                " choose drafter=token_recycling_warm"
            )

    def cold(self) -> TokenRecycling:
        """Return the same drafter without the table of earlier requests."""
        return replace(self, memory=None)

    def start(self, setting: DraftSetting) -> TokenRecyclingSession:
        """Return a session with a table per request, or with the one that is kept.

        Raises:
            TreespecError: If the memory holds tokens that the target does not know.
        """
        if self.memory is not None and self.memory.largest_token >= setting.vocab_size:
            raise TreespecError(
                f"drafter.memory holds token {self.memory.largest_token}, but the "
                f"target's vocabulary has {setting.vocab_size} tokens; give every "
                "target a table of its own"
            )
        return TokenRecyclingSession(self, setting)


class TokenRecyclingSession(AbstractDraftSession):
    """A table of successors per request, or one for all."""

    def __init__(self, drafter: TokenRecycling, setting: DraftSetting) -> None:
        """Begin without requests."""
        self._drafter, self._setting = drafter, setting
        self._tables: dict[int, RecyclingTable] = {}

    @property
    def num_forwards(self) -> int:
        """There is no draft model."""
        return 0

    def admit(self, request: int, prompt: Sequence[int], num_slots: int) -> None:
        """Give the request its table, which learns from the prompt."""
        memory = self._drafter.memory
        table = RecyclingTable() if memory is None else memory
        table.read(prompt, self._drafter.num_successors)
        self._tables[request] = table

    def expand(self, frontiers: Sequence[Frontier]) -> list[AbstractDraft]:
        """Return each node's successors; nothing follows end of sequence."""
        return [self._expand(frontier) for frontier in frontiers]

    def commit(self, request: int, feedback: Feedback) -> None:
        """Take in what the target said at the verified nodes."""
        if feedback.successors is not None:
            self._tables[request].update(feedback.successors)

    def release(self, request: int) -> None:
        """Forget the request; a table that is kept stays with its owner."""
        del self._tables[request]

    def _expand(self, frontier: Frontier) -> SparseDraft:
        table = self._tables[frontier.request].successors
        most, ends = self._drafter.num_successors, self._setting.eos_ids
        after = frontier.tree.tokens[frontier.nodes].tolist()
        candidates = [() if t in ends else table.get(t, ())[:most] for t in after]
        return listed(candidates, self._setting.device)
