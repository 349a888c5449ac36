"""Single forwards of a model over the end of a text, for warm-ups and for timings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

import torch

from treespec.drafters import AbstractDrafter, EarlyExit
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import Feed, ModelSession
from treespec.tree import Layer, TokenTree, root_tree
from treespec.types import ProposalKind


class Forwards:
    """Forwards of a model over the last token of a text and children of it."""

    def __init__(
        self, model: AbstractLanguageModel, text: Sequence[int], most_nodes: int
    ) -> None:
        """Reserve slots for a text and ``most_nodes`` children of its last token."""
        self._session = ModelSession(model, len(text) + most_nodes)
        sequence = self._session.admit(text, len(text) + most_nodes)
        assert sequence is not None
        self._sequence = sequence

    def skip_text(self) -> None:
        """Take all of the text but its last token as read, without a forward.

        Attention over zeros takes as long as over keys and values, so a long text
        need not be read to time what comes behind it.
        """
        self._session.skip(self._sequence, self._sequence.num_pending - 1)

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


def draft_models(drafter: AbstractDrafter) -> list[AbstractLanguageModel]:
    """Return the models that a drafter and its members run, as far as they are fields.

    Of one that drafts with the target's lower layers, these.
    """
    if isinstance(drafter, EarlyExit):
        return [drafter.model.lower_layers(drafter.exit_layer)]
    found: list[AbstractLanguageModel] = []
    for part in _parts(drafter):
        if isinstance(part, AbstractLanguageModel):
            found.append(part)
        elif isinstance(part, AbstractDrafter):
            found.extend(draft_models(part))
    return found


def _parts(drafter: AbstractDrafter) -> Iterator[object]:
    """Yield what a drafter holds, lists item by item."""
    if not is_dataclass(drafter):
        return
    for field in fields(drafter):
        value = getattr(drafter, field.name)
        yield from value if isinstance(value, tuple | list) else (value,)
