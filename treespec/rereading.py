"""The target reads a finished text again, in the ways that decoding may have read it.

Kernels round differently for different numbers of rows. The same text is therefore read
a token at a time, as plain decoding does; as a chain in one row; and as a path among
siblings, as verification does. What the readings differ by is the numerical noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.models.base import AbstractLanguageModel
from treespec.models.session import Feed, ModelSession
from treespec.sampling import Sampling
from treespec.tree import Layer, TokenTree, root_tree
from treespec.types import ProposalKind

_NUM_SIBLINGS = 3
_MOST_SPACINGS = 256
_MOST_SHARE = 1 / 8
"""What rounding can do to logits, at most: so many spacings of their number type, and
no more than this share of the largest one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the target says after a text, and how exactly it says it.

    Attributes:
        logits: Read a token at a time, history applied.  # [V]
        noise: How far a logit may be off.
    """

    logits: Tensor
    noise: float


@dataclass(frozen=True, slots=True)
class Reader:
    """The target, reading one text again.

    Attributes:
        target: The model.
        sampling: How tokens were chosen.
        text: Prompt and new tokens.
    """

    target: AbstractLanguageModel
    sampling: Sampling
    text: Sequence[int]

    def read(self, first: int, last: int) -> Reading:
        """Return the logits after the token at ``last``.

        Their noise is the largest difference between the ways of reading, over all
        tokens from ``first`` to ``last``. It is at least the spacing of the logits' own
        number type: rows may agree by luck, but closer than neighbouring numbers they
        never are. And it is bounded: readings that differ by more than rounding can
        explain are a fault, which must not excuse itself.

        Args:
            first: Place in the whole text.
            last: Place in the whole text.
        """
        raw = [
            self._one_by_one(first, last),
            self._in_one_row(first, last, bushy=False),
            self._in_one_row(first, last, bushy=True),
        ]
        plain, *others = (self._processed(logits, first).double() for logits in raw)
        sizes = plain[-1][plain[-1].isfinite()].abs()
        largest = float(sizes.max())
        spacing = torch.finfo(raw[0].dtype).eps * largest
        noise = max(spacing, *(_difference(plain, other) for other in others))
        noise = min(noise, _MOST_SPACINGS * spacing, _MOST_SHARE * largest)
        return Reading(self._processed(raw[0], first)[-1], noise)

    def logits(self, first: int, last: int) -> Tensor:
        """Return logits after each token from ``first`` to ``last``, from one forward.

        History is applied.  # [L, V]
        """
        return self._processed(self._in_one_row(first, last, bushy=False), first)

    @torch.inference_mode()
    def _one_by_one(self, first: int, last: int) -> Tensor:  # [L, V]
        text = list(self.text[: last + 1])
        session = ModelSession(self.target, len(text))
        sequence = session.admit(text[: first + 1], len(text))
        assert sequence is not None
        rows = []
        for place in range(first, last + 1):
            if place > first:
                sequence.tokens.append(text[place])
            elif first > 0:
                # The last token by itself, as a decoding step would read it.
                sequence.tokens.pop()
                session.run([Feed(sequence)])
                sequence.tokens.append(text[first])
            rows.append(session.run([Feed(sequence)])[0].logits[-1])
        return torch.stack(rows)

    @torch.inference_mode()
    def _in_one_row(self, first: int, last: int, *, bushy: bool) -> Tensor:  # [L, V]
        """Read a chain or, ``bushy``, a path whose every node has siblings.

        Siblings scatter the rows and slots of the path, as in a tree.
        """
        text = list(self.text[: last + 1])
        copies = 1 + _NUM_SIBLINGS * bushy
        num_slots = len(text) + (last - first) * copies
        session = ModelSession(self.target, num_slots)
        sequence = session.admit(text[:first], num_slots)
        assert sequence is not None
        if first > 0:
            session.run([Feed(sequence)])
        sequence.tokens.append(text[first])
        if first == last:
            logits = session.run([Feed(sequence)])[0].logits
        else:
            tree = path_tree(text[first : last + 1], copies, self.target.device)
            nodes = torch.arange(1, tree.size, device=self.target.device)
            logits = session.run([Feed(sequence, tree, nodes)])[0].logits[::copies]
        return logits

    def _processed(self, logits: Tensor, first: int) -> Tensor:  # [L, V] -> [L, V]
        """Apply the history to logits after the tokens from ``first`` on."""
        path = torch.tensor(self.text[first : first + len(logits)])
        path = path.to(logits.device)
        parents = torch.arange(len(path), device=logits.device) - 1
        committed = self.text[: first + 1]
        return self.sampling.apply_history(logits, path, parents, committed)


def _difference(left: Tensor, right: Tensor) -> float:
    """Return the largest difference; tokens that are banned in either do not count."""
    apart = (left - right).abs()
    return float(torch.where(apart.isfinite(), apart, 0.0).max())


def path_tree(tokens: Sequence[int], copies: int, device: torch.device) -> TokenTree:
    """Return a tree along ``tokens``, the first being its root.

    Every other token of the path is the last of ``copies`` equal siblings, so that the
    path is nodes 0, ``copies``, 2 * ``copies``, ... One copy makes a chain.
    """
    tree = root_tree(tokens[0], ProposalKind.DETERMINISTIC, device)
    depth = torch.arange(len(tokens) - 1, device=device).repeat_interleave(copies)
    layer = Layer(
        parents=depth * copies,
        tokens=torch.tensor(tokens[1:], device=device)[depth],
        draft_logprobs=torch.zeros(depth.shape[0], device=device),
        sources=torch.zeros_like(depth),
    )
    return tree.extend(layer, torch.zeros(1, dtype=torch.int64, device=device))
