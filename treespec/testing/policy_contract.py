"""What every draft policy owes: sound layers, no state, no luck of its own."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields

import torch
from torch import Tensor

from treespec.chance import GeneratorChance
from treespec.policies import AbstractDraftPolicy, Growth, layer_limit
from treespec.testing.drawing import draw_tree
from treespec.testing.failure import ConformanceError
from treespec.testing.laws import CPU
from treespec.testing.policy_cases import SOURCE, TEXT, PolicyCase
from treespec.tree import Layer, TokenTree, root_tree
from treespec.types import ProposalKind

NUM_REPLAYS = 4
"""Trees from the same draws: small ones may agree by luck where luck is foreign."""
ROUNDED = 1e-5
"""What float32 may do to a probability or its logarithm."""


def check_facts(policy: AbstractDraftPolicy) -> None:
    """Check that a policy states its facts.

    Raises:
        ConformanceError: It does not.
    """
    if not isinstance(policy, AbstractDraftPolicy):
        raise ConformanceError(
            f"{policy!r} must be an object of a subclass of AbstractDraftPolicy"
        )
    name = type(policy).__name__
    if not isinstance(policy.proposal, ProposalKind):
        raise ConformanceError(
            f"{name}.proposal must be a ProposalKind, got {policy.proposal!r}"
        )
    for fact in ("ends_siblings_early", "prunes"):
        if type(getattr(policy, fact)) is not bool:
            raise ConformanceError(
                f"{name}.{fact} must be True or False, got {getattr(policy, fact)!r}"
            )
    if policy.prunes and policy.proposal is not ProposalKind.DETERMINISTIC:
        raise ConformanceError(
            f"{name} prunes {policy.proposal} children: dropping what was drawn biases "
            "the output; say prunes = False, or declare it deterministic"
        )
    most: object = policy.max_children
    if most is not None and (type(most) is not int or most < 1):
        raise ConformanceError(
            f"{name}.max_children must be an integer >= 1, or None for no limit, "
            f"got {most!r}"
        )


def check_layers(policy: AbstractDraftPolicy, case: PolicyCase, seed: int) -> None:
    """Check every layer of one tree.

    Raises:
        ConformanceError: A layer is unsound; shows the tree.
    """
    name = type(policy).__name__
    chance = GeneratorChance(torch.Generator().manual_seed(seed))
    tree = None
    for growth, layer in case.grow(policy, chance):
        fault = find_fault(policy, growth, layer)
        if fault:
            raise ConformanceError(
                f"{name} grew a wrong layer: {fault}\n{case}\n"
                f"the tree before: {draw_tree(growth.tree)}\n"
                f"frontier {growth.frontier.tolist()}, room {growth.room}\n{layer}"
            )
        tree = growth.tree.extend(layer, growth.frontier)
    if tree is not None:
        case.kept(policy, tree)


def find_fault(
    policy: AbstractDraftPolicy, growth: Growth, layer: object
) -> str | None:
    """Return what is wrong with a layer, or ``None``."""
    if not isinstance(layer, Layer):
        return "grow must return a Layer or None"
    checks = (_sizes, _places, _children, _draft_probs, _logprobs)
    return next(filter(None, (check(policy, growth, layer) for check in checks)), None)


def _sizes(policy: AbstractDraftPolicy, growth: Growth, layer: Layer) -> str | None:
    columns = (layer.parents, layer.tokens, layer.sources, layer.draft_logprobs)
    if any(column.shape != (layer.size,) for column in columns):
        return "parents, tokens, draft_logprobs and sources must have one entry a node"
    if any(column.dtype != torch.int64 for column in columns[:3]):
        return "parents, tokens and sources must be int64"
    if layer.size > layer_limit(policy, growth):
        word = "budget.max_width" if policy.prunes else "growth.room"
        return f"it has {layer.size} nodes, but {word} is {layer_limit(policy, growth)}"
    return None


def _places(policy: AbstractDraftPolicy, growth: Growth, layer: Layer) -> str | None:
    strange = set(layer.parents.tolist()) - set(growth.frontier.tolist())
    if strange and policy.proposal is ProposalKind.DETERMINISTIC:
        return "parents must be nodes of growth.frontier"
    if strange - _expanded_before(growth):
        return "parents must be nodes of growth.frontier, or of an earlier one"
    if not all(0 <= token < growth.vocab_size for token in layer.tokens.tolist()):
        return f"tokens must be in [0, {growth.vocab_size})"
    if set(layer.sources.tolist()) - {SOURCE}:
        return f"sources must be those of the draft, here {SOURCE}"
    if layer.expand is not None:
        return _expansion(growth, layer, layer.expand.tolist())
    return None


def _expansion(growth: Growth, layer: Layer, nodes: list[int]) -> str | None:
    """Return what is wrong with the nodes that are to be expanded next, or ``None``."""
    size = growth.tree.size + layer.size
    if len(set(nodes)) < len(nodes):
        return "expand must not name a node twice"
    if not set(nodes) <= set(range(1, size)):
        return f"expand must hold ids of nodes in the grown tree, in [1, {size})"
    expanded = _expanded_before(growth) | set(growth.frontier.tolist())
    if again := sorted(set(nodes) & expanded):
        return f"expand names nodes that have been expanded: {again}"
    if len(nodes) > growth.budget.max_width:
        return f"expand must name at most budget.max_width={growth.budget.max_width}"
    return None


def _expanded_before(growth: Growth) -> set[int]:
    """Return the nodes of earlier frontiers."""
    return set(growth.tree.is_expanded.nonzero().flatten().tolist())


def _children(policy: AbstractDraftPolicy, growth: Growth, layer: Layer) -> str | None:
    parents = growth.tree.parents.tolist() + layer.parents.tolist()
    most = policy.max_children
    if most is not None and any(parents.count(node) > most for node in set(parents)):
        return f"a node has more children than max_children, which is {most}"
    return None


def _draft_probs(
    policy: AbstractDraftPolicy, growth: Growth, layer: Layer
) -> str | None:
    sampled = policy.proposal is not ProposalKind.DETERMINISTIC
    laws = layer.draft_probs
    if not sampled:
        if laws is not None:
            return "deterministic layers claim no law, so they have no draft_probs"
        return None
    num_rows = growth.frontier.shape[0]
    if laws is None or laws.shape != (num_rows, growth.vocab_size):
        return f"draft_probs must hold a row for each of the {num_rows} frontier nodes"
    mass = laws.sum(dim=-1)
    sound = ((mass - 1).abs() < ROUNDED) | (mass == 0)
    if not bool((laws >= 0).all()) or not bool(sound.all()):
        return "every row of draft_probs must be a law, or zeros if nothing is known"
    if bool((_probs_of_nodes(growth, layer) <= 0).any()):
        return "a node has probability 0 in draft_probs, so it cannot have been drawn"
    return None


def _probs_of_nodes(growth: Growth, layer: Layer) -> Tensor:  # [M]
    """Return the probabilities that the nodes' tokens had when they were drawn."""
    tree = growth.tree.extend(layer, growth.frontier)
    assert tree.draft_probs is not None
    probs: Tensor = tree.draft_probs[tree.draft_rows[layer.parents], layer.tokens]
    return probs


def _logprobs(policy: AbstractDraftPolicy, growth: Growth, layer: Layer) -> str | None:
    given = layer.draft_logprobs
    if bool(given.isnan().any()) or bool((given > ROUNDED).any()):
        return "draft_logprobs must be logarithms of probabilities"
    if layer.draft_probs is not None:
        of_nodes = _probs_of_nodes(growth, layer).log()
        if not torch.allclose(given.double(), of_nodes.double(), atol=ROUNDED):
            return "draft_logprobs must be those of the nodes' tokens in draft_probs"
    return None


def check_requests(policy: AbstractDraftPolicy, case: PolicyCase) -> None:
    """Check that two requests that take turns get the trees that each gets alone.

    Raises:
        ConformanceError: They do not, or one alone does not get the same tree again.
    """
    name = type(policy).__name__
    alone, *replays = (
        [_in_turns([deepcopy(policy)], case, [seed])[0] for seed in (1, 2)]
        for _ in range(NUM_REPLAYS)
    )
    together = _in_turns([policy, policy], case, [1, 2])
    for one, other in [
        pair for again in replays for pair in zip(alone, again, strict=True)
    ]:
        if not _equal(one, other):
            raise ConformanceError(
                f"{name} grew two trees from the same draws: it draws from elsewhere "
                f"than growth.chance, or keeps state outside of its object\n{case}\n"
                f"first: {draw_tree(one)}\nthen: {draw_tree(other)}"
            )
    for one, other in zip(alone, together, strict=True):
        if not _equal(one, other):
            raise ConformanceError(
                f"{name} mixes up two requests that take turns: it keeps state on its "
                f"object, or draws from elsewhere than growth.chance\n{case}\n"
                f"alone: {draw_tree(one)}\nin turns: {draw_tree(other)}"
            )


def _in_turns(
    policies: list[AbstractDraftPolicy], case: PolicyCase, seeds: list[int]
) -> list[TokenTree]:
    """Grow trees side by side, a layer of each after the other."""
    growing = [
        case.grow(policy, GeneratorChance(torch.Generator().manual_seed(seed)))
        for policy, seed in zip(policies, seeds, strict=True)
    ]
    trees = [root_tree(TEXT[-1], policy.proposal, CPU) for policy in policies]
    for _ in range(case.budget.max_depth):
        for place, layers in enumerate(growing):
            grown = next(layers, None)
            if grown is not None:
                growth, layer = grown
                trees[place] = growth.tree.extend(layer, growth.frontier)
    return trees


def _equal(one: TokenTree, other: TokenTree) -> bool:
    pairs = ((getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
