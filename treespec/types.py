"""Records that travel between the parts: plain, frozen, without behaviour.

Words used here and everywhere else:

- *accepted* token: a drafted token that the target keeps;
- *recovered* token: the target's own token after a rejection;
- *bonus* token: the target's own token after a path that was accepted to its leaf;
- *committed* tokens of a step: the accepted ones plus the recovered or bonus token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from treespec.errors import require_integer

NextKind = Literal["bonus", "recovered"]
FinishReason = Literal["eos", "stop", "length"]


class ProposalKind(StrEnum):
    """How the children of a node came about: rules are lossless for some of these."""

    DETERMINISTIC = "deterministic"
    """No law is claimed: argmax, top-k, retrieved, or drawn and pruned by value."""
    WITH_REPLACEMENT = "with_replacement"
    """Independent draws from ``draft_probs``; repeated tokens have a meaning."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Sequential draws from the renormalised ``draft_probs``, kept in draw order."""
    GREEDY_PLUS_RANDOM = "greedy_plus_random"
    """The top k-1 tokens plus one draw from the rest (2502.18779)."""
    ARGMAX_PAIR = "argmax_pair"
    """The ordered pair law of SpecHub (2411.05289)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one step may spend on its tree.

    Attributes:
        max_depth: Deepest node, and most expansions; 0 turns speculation off for the
            step.
        max_width: Most nodes that one expansion adds: a layer, for policies that grow
            layer by layer.
        max_nodes: Most nodes of the tree that is verified, the root excluded.
    """

    max_depth: int
    max_width: int
    max_nodes: int

    def __post_init__(self) -> None:
        """Check the bounds."""
        for name, least in (("max_depth", 0), ("max_width", 1), ("max_nodes", 0)):
            require_integer(name, getattr(self, name), least)

    @property
    def most_nodes(self) -> int:
        """Most verified nodes that depth, width and nodes allow together."""
        return min(self.max_nodes, self.max_depth * self.max_width)

    @property
    def most_candidates(self) -> int:
        """Most nodes that can be drafted before a policy prunes them."""
        return self.max_depth * self.max_width

    @property
    def speculates(self) -> bool:
        """Whether the step may draft anything at all."""
        return self.max_depth > 0 and self.max_nodes > 0


OFF = Budget(max_depth=0, max_width=1, max_nodes=0)
"""The zero budget: a plain autoregressive step."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What an acceptance rule decided about one tree.

    Attributes:
        node_ids: Accepted nodes, root excluded, from depth 1 downwards.
        next_token: The token that ends the step: it always exists.
        next_kind: ``bonus`` if the path ended at a node without children.
    """

    node_ids: tuple[int, ...]
    next_token: int
    next_kind: NextKind


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a policy expects of a tree before it is verified.

    Attributes:
        expected_accepted: Draft tokens that will be accepted, on average.
        step_s: Seconds that the step will have taken; ``None`` if it knows no costs.
        reason: Why the tree is as it is, in a few words that can be counted, such as
            ``lookup`` or ``off: the draft is too slow``.
    """

    expected_accepted: float
    step_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One request's share of one step, JSON-ready.

    Counts hold only what was committed: tokens cut by a stop or a length limit count
    nowhere. When a step serves several requests in one row, its seconds are shared
    out equally, so that sums over records are sums of wall time.

    Attributes:
        step: Index within the request; the prefill (which yields the first token) is
            not a step.
        num_candidates: Drafted nodes, root excluded, those that were pruned included.
        num_nodes: Verified nodes, root excluded.
        depth: Depth of the tree.
        width: Nodes in its widest layer.
        nodes_by_depth: Nodes at depth 1, 2, ...
        num_accepted: Accepted draft tokens.
        num_committed: ``num_accepted + 1`` unless the step was cut.
        accepted_ranks: Draw-order rank among its siblings of each accepted node.
        accepted_sources: Drafter that proposed each accepted node.
        next_kind: How the step's last token came about; ``None`` if it was cut.
        num_draft_forwards: Forwards of a draft model that were run for its tree; those
            of a row that several requests share count for each.
        draft_s, plan_s, verify_s, accept_s, commit_s: Seconds of the phases.
        step_s: Seconds of the whole step; the rest is overhead.
        max_depth, max_width, max_nodes: The budget the step had.
        budget_by: Who set the budget: a controller's name, or ``limit`` when the
            remaining length cut it.
        judged_sources: Drafter of each node that was judged: the accepted ones and
            their siblings, in the order of the tree.
        judged_ranks: Its draw-order rank among its siblings.
        judged_depths: Its depth.
        judged_probs: Its probability given its parent, as the drafter had it.
        judged_accepted: Whether it was accepted.
        num_unread: Committed tokens that a draft model had not read when the step
            began; its first forward reads them too.
        expected_accepted: Accepted tokens that the policy expected of the tree, if it
            says.
        expected_s: Seconds that it expected the step to take, if it says.
        reason: Why it drafted as it did, if it says.
    """

    step: int
    num_candidates: int
    num_nodes: int
    depth: int
    width: int
    nodes_by_depth: tuple[int, ...]
    num_accepted: int
    num_committed: int
    accepted_ranks: tuple[int, ...]
    accepted_sources: tuple[str, ...]
    next_kind: NextKind | None
    num_draft_forwards: int
    draft_s: float
    plan_s: float
    verify_s: float
    accept_s: float
    commit_s: float
    step_s: float
    max_depth: int
    max_width: int
    max_nodes: int
    budget_by: str
    judged_sources: tuple[str, ...]
    judged_ranks: tuple[int, ...]
    judged_depths: tuple[int, ...]
    judged_probs: tuple[float, ...]
    judged_accepted: tuple[bool, ...]
    num_unread: int
    expected_accepted: float | None = None
    expected_s: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """One node of one tree, root excluded, JSON-ready.

    Attributes:
        step: The step that drafted it.
        node: Its id in the tree.
        parent: Its parent's id.
        depth: Its depth.
        rank: Draw-order rank among its siblings.
        token: Token id.
        source: Drafter that proposed it.
        draft_prob: Probability given its parent, as the drafter ranked it.
        target_prob: The target's probability given its parent, after ``Sampling``.
        verdict: ``accepted``; ``rejected`` (its parent was reached, another token was
            taken); ``unreached`` (its parent was not on the accepted path); ``cut``
            (accepted, then cut by a stop or a length limit).
        optimal_acceptance: The best probability with which any rule could accept one of
            its parent's children, given the law that they were drawn from; for
            ``deterministic`` children the target's mass of the set. The same for all
            siblings; ``None`` if their parent was not evaluated, that is, if the
            committed text did not get there.
    """

    step: int
    node: int
    parent: int
    depth: int
    rank: int
    token: int
    source: str
    draft_prob: float
    target_prob: float
    verdict: Literal["accepted", "rejected", "unreached", "cut"]
    optimal_acceptance: float | None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What one prompt became.

    Attributes:
        prompt_tokens: The prompt's token ids.
        tokens: New token ids; an end-of-sequence id that ended the text is included.
        text: The new text without special tokens, cut before a stop string; ``None``
            if the decoder has no tokenizer.
        finish_reason: ``eos``, ``stop`` (a stop string) or ``length``
            (``max_new_tokens`` or the model's context).
        seed: The seed of this request; ``None`` if it was left to chance.
        prefill_s: Seconds from admission to the first token (time to first token).
        decode_s: Seconds from the first token to the last.
        steps: One record per step after the prefill.
        token_times_s: Seconds since admission at which each token was committed.
        traces: Node by node, if the decoder was asked to trace.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str | None
    finish_reason: FinishReason
    seed: int | None
    prefill_s: float
    decode_s: float
    steps: tuple[StepRecord, ...]
    token_times_s: tuple[float, ...]
    traces: tuple[NodeTrace, ...] = ()


class Tokenizer(Protocol):
    """The part of a tokenizer that the decoder needs."""

    def encode(self, text: str) -> list[int]:
        """Return token ids, special tokens of the model included."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
