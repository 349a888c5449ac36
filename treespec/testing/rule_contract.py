"""What every acceptance rule owes, lossless or not: facts, purity, errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields
from functools import partial

import torch
from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule
from treespec.chance import AbstractChance, GeneratorChance
from treespec.errors import NumericalError
from treespec.sampling import Sampling
from treespec.testing.checked_rule import CheckedRule, show_case
from treespec.testing.drawing import draw_tree
from treespec.testing.enumeration import ScriptedChance, outcomes, replays
from treespec.testing.failure import ConformanceError
from treespec.testing.laws import PLAIN, Setting, play_round
from treespec.testing.purity import leaves_alone
from treespec.testing.refusals import check_refusals
from treespec.testing.rule_cases import GREEDY, most_tried, random_setting
from treespec.testing.toys import Text
from treespec.tree import ROOT, TokenTree
from treespec.types import ProposalKind

FACTS = ("lossless", "greedy_only", "draws_like_autoregressive", "takes_early_ends")
"""What a rule states with yes or no."""
ELSEWHERE = "draws from elsewhere than chance"


def check_facts(rule: AbstractAcceptanceRule) -> None:
    """Check that a rule states its facts, and that it refuses what they exclude.

    Raises:
        ConformanceError: It does not.
    """
    if not isinstance(rule, AbstractAcceptanceRule):
        raise ConformanceError(
            f"{rule!r} must be an object of a subclass of AbstractAcceptanceRule"
        )
    for fact in FACTS:
        if type(getattr(rule, fact)) is not bool:
            raise ConformanceError(
                f"{rule.name}.{fact} must be True or False, got {getattr(rule, fact)!r}"
            )
    _check_proposals(rule, rule.proposals)
    try:
        hash(rule)
    except TypeError as error:
        raise ConformanceError(
            f"{rule.name} must be hashable, but {error}; make it a "
            "@dataclass(frozen=True, slots=True) that holds hyper-parameters only"
        ) from error
    check_refusals(rule)


def _check_proposals(rule: AbstractAcceptanceRule, proposals: object) -> None:
    fits = (
        isinstance(proposals, Mapping)
        and len(proposals) > 0
        and all(isinstance(kind, ProposalKind) for kind in proposals)
        and all(
            most is None or (type(most) is int and most >= 1)
            for most in proposals.values()
        )
    )
    if not fits:
        raise ConformanceError(
            f"{rule.name}.proposals must map each ProposalKind that the rule takes to "
            f"the most children per node, or None for any number, got {proposals!r}"
        )


def check_purity(rule: CheckedRule) -> None:
    """Check that a rule is a function of its arguments.

    Raises:
        ConformanceError: It writes to them, keeps state, or draws elsewhere.
    """
    for setting in _settings(rule):
        with leaves_alone(rule.name, rule.rule, ELSEWHERE):
            for tree, logits in _verified(setting):
                _check_arguments(rule, setting, tree, logits)
        with leaves_alone(rule.name, rule.rule, ELSEWHERE):
            _check_requests(rule, setting)


def _settings(rule: AbstractAcceptanceRule) -> Iterator[Setting]:
    """Yield a small toy for every proposal that the rule takes."""
    sampling = GREEDY if rule.greedy_only else PLAIN
    for proposal, most in rule.proposals.items():
        width = min(2, most_tried(proposal, most))
        yield random_setting(proposal, (width, 1), 3, sampling)


def _verified(setting: Setting) -> Iterator[tuple[TokenTree, Tensor]]:
    for number, (_, tree) in enumerate(outcomes(partial(setting.grow, (0,)))):
        if number == 4:
            return
        yield tree, setting.verify(tree, (0,))


def _check_arguments(
    rule: AbstractAcceptanceRule, setting: Setting, tree: TokenTree, logits: Tensor
) -> None:
    """Check that arguments stay as they are, and that draws decide everything."""
    given = {**_tensors(tree), "target_logits": logits}
    before = {name: tensor.clone() for name, tensor in given.items()}
    accept = partial(rule.accept, tree, logits, setting.sampling)
    for chance, acceptance in replays(accept):
        for name, tensor in given.items():
            if not torch.equal(tensor, before[name]):
                raise ConformanceError(
                    f"{rule.name} writes to {name}, which others still read; "
                    f"work on a copy\n{draw_tree(tree)}"
                )
        again = accept(ScriptedChance(chance.taken))
        if again != acceptance:
            raise ConformanceError(
                f"{rule.name} decided differently on the same draws; keep no state, "
                f"and draw from chance alone\nfirst {acceptance}\nthen  {again}\n"
                f"{draw_tree(tree)}"
            )


def _tensors(tree: TokenTree) -> dict[str, Tensor]:
    values = {f"tree.{field.name}": getattr(tree, field.name) for field in fields(tree)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _check_requests(rule: AbstractAcceptanceRule, setting: Setting) -> None:
    """Check that two requests that take turns get what each would get alone."""
    alone = [_texts([deepcopy(rule)], setting, [seed])[0] for seed in (1, 2)]
    together = _texts([rule, rule], setting, [1, 2])
    if alone != together:
        raise ConformanceError(
            f"{rule.name} mixes up two requests that take turns; keep no state, and "
            f"draw from chance alone\nalone    {alone}\ntogether {together}"
        )


def _texts(
    rules: list[AbstractAcceptanceRule], setting: Setting, seeds: list[int]
) -> list[Text]:
    """Decode requests in turns, each with its own generator; return their texts."""
    chances = [GeneratorChance(torch.Generator().manual_seed(seed)) for seed in seeds]
    texts: list[Text] = [(0,)] * len(seeds)
    for _ in range(6):
        for place, (rule, chance) in enumerate(zip(rules, chances, strict=True)):
            played = play_round(rule, setting, texts[place], chance)
            texts[place] += played.committed
    return texts


def check_numbers(rule: CheckedRule) -> None:
    """Check that a node whose logits are no numbers raises where it decides.

    Raises:
        ConformanceError: The rule took a token from such a node, or failed otherwise.
    """
    for setting in _settings(rule):
        for tree, logits in _verified(setting):
            accept = partial(rule.accept, tree, logits, setting.sampling)
            for chance, acceptance in replays(accept):
                end = acceptance.node_ids[-1] if acceptance.node_ids else ROOT
                for bad in (torch.nan, torch.inf):
                    damaged = logits.clone()
                    damaged[end, 0] = bad
                    replay = ScriptedChance(chance.taken)
                    _check_raises(rule, tree, damaged, setting.sampling, replay)


def _check_raises(
    rule: CheckedRule,
    tree: TokenTree,
    damaged: Tensor,
    sampling: Sampling,
    chance: AbstractChance,
) -> None:
    try:
        outcome = f"returned {rule.accept(tree, damaged, sampling, chance)}"
    except NumericalError:
        return
    except ConformanceError as error:
        outcome = str(error).partition("\n")[0]
    raise ConformanceError(
        f"{rule.name} must raise NumericalError where it decides at a node whose best "
        "logit, logits.amax(), is NaN or inf (-inf is allowed and bans a token), but: "
        f"{outcome}\n{show_case(tree, damaged, sampling)}"
    )
