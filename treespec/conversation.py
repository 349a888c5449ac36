"""From prompts to what the models read: chat templates, and one turn after another.

Both sides of a comparison read the same text. So every later turn of a conversation
follows the *plain* answers to the earlier ones, on both sides: what speculation made of
them changes neither the question nor its length.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from treespec.datasets.base import Prompt, turn_id
from treespec.errors import TreespecError
from treespec.measure import Task
from treespec.models.loading import ModelInfo


def first_turns(prompts: Sequence[Prompt], info: ModelInfo, key: str) -> list[Task]:
    """Return the prompts' first turns, all of which the model can read.

    Args:
        prompts: The prompts.
        info: The target.
        key: Its place in the configuration, for errors.

    Raises:
        TreespecError: Names a prompt that does not fit the model.
    """
    return [_Conversation(prompt, info).first(key) for prompt in prompts]


@dataclass(frozen=True, slots=True)
class _Conversation:
    """A prompt, and the answers to its turns so far.

    Attributes:
        prompt: The prompt.
        info: The target.
        answers: Plain decoding's texts.
    """

    prompt: Prompt
    info: ModelInfo
    answers: tuple[str, ...] = ()

    def first(self, key: str) -> Task:
        """Return the first turn; refuse a prompt that the model cannot read."""
        prompt, info, tokens = self.prompt, self.info, self._tokens()
        if not self._fits(tokens):
            raise TreespecError(
                f"dataset: prompt {prompt.id!r} has {len(tokens)} tokens (chat template"
                f" included), but {key} reads at most {info.max_positions} with its "
                "answer; shorten the prompt, or choose a model with a longer context"
            )
        if max(tokens, default=0) >= info.vocab_size:
            raise TreespecError(
                f"{key}: its tokenizer made token {max(tokens)} of prompt "
                f"{prompt.id!r}, but the model knows 0 to {info.vocab_size - 1}; the "
                "tokenizer is of another model"
            )
        return self._task(tokens)

    def after(self, answer: str) -> Task | None:
        """Return the turn that follows an answer, if there is one and it fits."""
        longer = _Conversation(self.prompt, self.info, (*self.answers, answer))
        if len(longer.answers) == len(self.prompt.turns):
            return None
        tokens = longer._tokens()
        if not self._fits(tokens):
            print(
                f"note: turn {len(longer.answers) + 1} of prompt {self.prompt.id!r} is "
                f"left out: the conversation has {len(tokens)} tokens by then, and the "
                f"model reads at most {self.info.max_positions} with its answer",
                file=sys.stderr,
                flush=True,
            )
            return None
        return longer._task(tokens)

    def _task(self, tokens: list[int]) -> Task:
        prompt, turn = self.prompt, len(self.answers) + 1
        name = turn_id(prompt.id, turn)
        return Task(name, prompt.category, tuple(tokens), prompt, turn, self.after)

    def _fits(self, tokens: Sequence[int]) -> bool:
        limit = self.info.max_positions
        return limit is None or len(tokens) < limit

    def _tokens(self) -> list[int]:
        """Return what the model reads; without a template the texts stand alone."""
        tokenizer, prompt = self.info.tokenizer, self.prompt
        turns = prompt.turns[: len(self.answers) + 1]
        if not (prompt.chat and self.info.has_chat_template):
            pairs = zip(turns, (*self.answers, ""), strict=True)
            texts = [text for pair in pairs for text in pair if text]
            return tokenizer.encode("\n\n".join(texts))
        messages = [{"role": "user", "content": turns[0]}]
        for answer, turn in zip(self.answers, turns[1:], strict=True):
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": turn},
            ]
        return tokenizer.chat(messages)
