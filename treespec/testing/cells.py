"""The target's law of the next tokens, coarsened so that sampled texts can be counted.

Of 150,000 tokens only those that carry mass are followed; the others share cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.decoder import SpeculativeDecoder
from treespec.intake import Prompt
from treespec.models.session import Feed, ModelSession
from treespec.sampling import Sampling
from treespec.tree import NO_PARENT

Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CellLaw:
    """A law of texts, in cells.

    Attributes:
        cells: Probability of each cell. A text that is not whole stands for all texts
            that begin with it and go on with a token too rare for a cell of its own.
        whole: The cells that are one whole text.
        possible: Which tokens may follow each text that was looked at.  # [V] bool
    """

    cells: dict[Text, float]
    whole: frozenset[Text]
    possible: dict[Text, Tensor]

    def cell(self, text: Text) -> Text:
        """Return the cell of a text: its longest beginning that is one."""
        lengths = range(len(text), -1, -1)
        return next(text[:n] for n in lengths if text[:n] in self.cells)

    def allows(self, text: Text) -> bool:
        """Return whether no token of the text has probability 0, as far as known."""
        return all(
            bool(self.possible[text[:place]][token])
            for place, token in enumerate(text)
            if text[:place] in self.possible
        )


def target_law(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    sampling: Sampling,
    num_tokens: int,
    least: float,
) -> CellLaw:
    """Return the target's own law of the next tokens, without any speculation.

    Args:
        decoder: Its target is asked, one plain forward per text.
        prompt: A text or token ids.
        sampling: Turns logits into laws.
        num_tokens: Length of a whole text; one that ends is whole earlier.
        least: Probability below which a text is not followed.
    """
    (empty,) = decoder.generate([prompt], sampling, max_new_tokens=0)
    reader = _Reader(decoder, empty.prompt_tokens, sampling, num_tokens)
    cells: dict[Text, float] = {}
    whole: list[Text] = []
    possible: dict[Text, Tensor] = {}
    growing: dict[Text, float] = {(): 1.0}
    for _ in range(num_tokens):
        longer: dict[Text, float] = {}
        for text, mass in growing.items():
            law = reader.law(text)
            possible[text] = law > 0
            followed = law * mass >= least
            cells[text] = mass * float(law[~followed].sum())
            tokens = followed.nonzero().flatten()
            for token, prob in zip(tokens.tolist(), law[tokens].tolist(), strict=True):
                longer[(*text, token)] = mass * prob
        ended = {text for text in longer if text[-1] in decoder.eos_ids}
        whole += ended
        cells |= {text: longer.pop(text) for text in ended}
        growing = longer
    return CellLaw(cells | growing, frozenset((*whole, *growing)), possible)


class _Reader:
    """Reads texts with the target alone: no tree, one row per forward."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        prompt: tuple[int, ...],
        sampling: Sampling,
        num_tokens: int,
    ) -> None:
        num_slots = len(prompt) + num_tokens
        self._session = ModelSession(decoder.target, num_slots)
        sequence = self._session.admit(prompt, num_slots)
        assert sequence is not None
        self._sequence, self._sampling = sequence, sampling
        self._num_prompt_tokens = len(prompt)

    @torch.inference_mode()
    def law(self, text: Text) -> Tensor:  # [V] float64, on the CPU
        """Return the law of the token after the prompt and a text."""
        session, sequence = self._session, self._sequence
        sequence.tokens.extend(text)
        (output,) = session.run([Feed(sequence)])
        history = list(sequence.tokens)
        session.rewind(sequence, self._num_prompt_tokens)
        last = output.logits.new_tensor(history[-1:]).long()
        above = torch.full_like(last, NO_PARENT)
        logits = self._sampling.apply_history(output.logits, last, above, history)
        return self._sampling.probs(logits)[0].double().cpu()
