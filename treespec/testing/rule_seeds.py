"""Does a rule draw as plain decoding does, so that seeds mean the same text?"""

from __future__ import annotations

from dataclasses import replace

import torch

from treespec.acceptance import AbstractAcceptanceRule
from treespec.chance import GeneratorChance
from treespec.testing.failure import ConformanceError
from treespec.testing.laws import Setting, play_round
from treespec.testing.rule_cases import GREEDY, random_setting
from treespec.testing.toys import Text
from treespec.types import ProposalKind

NUM_SEEDS = 5
NUM_TOKENS = 12


def check_draws(rule: AbstractAcceptanceRule) -> None:
    """Check that a rule which says so yields plain decoding's text from every seed.

    Raises:
        ConformanceError: It does not.
    """
    if not rule.draws_like_autoregressive:
        return
    setting = random_setting(ProposalKind.DETERMINISTIC, (2, 2), 4)
    if ProposalKind.DETERMINISTIC not in rule.proposals:
        raise ConformanceError(
            f"{rule.name} says draws_like_autoregressive but takes no deterministic "
            "tree, so it draws more than plain decoding; say False"
        )
    if rule.greedy_only:
        setting = replace(setting, sampling=GREEDY)
    for seed in range(NUM_SEEDS):
        plain = seeded_text(rule, replace(setting, widths=()), seed)
        text = seeded_text(rule, setting, seed)
        if text != plain:
            raise ConformanceError(
                f"{rule.name} says draws_like_autoregressive, but from seed {seed} it "
                "writes another text with a tree than without; draw once per committed "
                "token, from the target's law, or say False\n"
                f"without {list(plain)}\nwith    {list(text)}"
            )


def seeded_text(rule: AbstractAcceptanceRule, setting: Setting, seed: int) -> Text:
    """Return the text that a rule writes with a generator of its own."""
    chance = GeneratorChance(torch.Generator().manual_seed(seed))
    text: Text = (0,)
    while len(text) <= NUM_TOKENS:
        text += play_round(rule, setting, text, chance).committed
    return text[: NUM_TOKENS + 1]
