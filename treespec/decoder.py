"""The loop: draft a tree, verify it, accept a path, commit it. And nothing else.

Autoregressive decoding is the same loop with a zero budget, so that a baseline differs
in nothing but speculation. A request's first token comes from its prefill, which is a
step with a zero budget that leaves no record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule
from treespec.controllers import AbstractController, Constant
from treespec.drafters import (
    AbstractDrafter,
    AbstractDraftSession,
    DraftSetting,
    Feedback,
    Successors,
)
from treespec.drafting import Drafting, RequestDraft
from treespec.errors import (
    IncompatiblePartsError,
    NumericalError,
    TreespecError,
    require_integer,
)
from treespec.intake import Order, Prompt, Seed, make_requests
from treespec.models.base import AbstractLanguageModel
from treespec.models.session import ModelSession
from treespec.policies import AbstractDraftPolicy, Situation
from treespec.recording import Phases, StepOutcome, record_step, trace_nodes
from treespec.request import Request, Stopping
from treespec.sampling import Sampling
from treespec.scheduler import Scheduler
from treespec.stopwatch import Stopwatch
from treespec.tree import root_tree
from treespec.types import (
    OFF,
    Acceptance,
    FinishReason,
    GenerationResult,
    ProposalKind,
    Tokenizer,
)
from treespec.verifiers import AbstractVerifier, Candidate, VerifierOutput

GREEDY_SAMPLING = Sampling()
MAX_SLOTS = 2**24
"""Largest pool of slots; what is larger is a slip of the keys."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens that one request has just committed.

    Attributes:
        prompt: Which prompt.
        tokens: The new tokens, in order.
        finish_reason: Why the text ended with them; ``None`` if it goes on.
    """

    prompt: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class SpeculativeDecoder:
    """Decodes any number of prompts with a target model and five exchangeable parts.

    Attributes:
        target: The model whose output distribution is kept.
        drafter: Where candidate tokens come from.
        policy: What shape a tree gets.
        acceptance: Which path survives.
        verifier: How the target is asked.
        controller: How much a step may spend.
        tokenizer: For prompts given as text, for ``text`` in results, for stop strings.
        eos_ids: Ids that end a text, the target's own.
        max_concurrent: Most requests in one forward; others wait.
        trace: Whether results carry a trace of every node.

    Raises:
        IncompatiblePartsError: If the rule is biased for the policy's proposal.
    """

    target: AbstractLanguageModel
    drafter: AbstractDrafter
    policy: AbstractDraftPolicy
    acceptance: AbstractAcceptanceRule
    verifier: AbstractVerifier
    controller: AbstractController[Any]
    tokenizer: Tokenizer | None = None
    eos_ids: frozenset[int] = frozenset()
    max_concurrent: int = 8
    trace: bool = False

    def __post_init__(self) -> None:
        """Refuse parts that are wrong together."""
        self.check(GREEDY_SAMPLING)
        require_integer("max_concurrent", self.max_concurrent, 1)

    def check(self, sampling: Sampling) -> None:
        """Refuse a rule that would bias the output of this policy or this sampling.

        Raises:
            IncompatiblePartsError: The parts do not go together.
        """
        policy = self.policy
        if policy.prunes and policy.proposal is not ProposalKind.DETERMINISTIC:
            raise IncompatiblePartsError(
                f"{type(policy).__name__} prunes {policy.proposal} children: dropping "
                "what was drawn biases the output; say prunes = False, or declare it "
                "deterministic"
            )
        self.acceptance.check(
            policy.proposal,
            policy.max_children,
            policy.ends_siblings_early,
            sampling,
            type(policy).__name__,
        )

    def autoregressive(self) -> SpeculativeDecoder:
        """Return the same decoder with speculation off: the baseline."""
        return replace(self, controller=Constant(max_depth=0, max_nodes=0))

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling = GREEDY_SAMPLING,
        max_new_tokens: int = 128,
        seed: Seed = 0,
        stop: Sequence[str] = (),
    ) -> list[GenerationResult]:
        """Decode all prompts and return their results in order.

        Args:
            prompts: Texts or token ids.
            sampling: Temperature and the like, the same for all prompts.
            max_new_tokens: Most new tokens per prompt.
            seed: One seed per prompt, or one for all: prompt i then has ``seed + i``.
                What a prompt becomes depends on its own seed only, not on its
                neighbours, unless they change what is drafted (a planner that weighs
                their load) and the rule looks at the draft's law: then it is another
                text of the same law. ``None`` leaves it to chance.
            stop: Strings that end a text.

        Raises:
            TreespecError: If a prompt or a setting is impossible.
            NumericalError: If the target's logits are NaN.
        """
        run = Run(self, prompts, sampling, max_new_tokens, seed, stop)
        for _ in run.steps():
            pass
        return [request.result() for request in run.requests]

    def stream(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling = GREEDY_SAMPLING,
        max_new_tokens: int = 128,
        seed: Seed = 0,
        stop: Sequence[str] = (),
    ) -> Iterator[Committed]:
        """Yield tokens as they are committed; arguments as in ``generate``."""
        return Run(self, prompts, sampling, max_new_tokens, seed, stop).steps()


class Run:
    """One call of ``generate`` or ``stream``: its sessions, its queue, its clock.

    Attributes:
        requests: One per prompt, in order.
        scheduler: Which of them are active, and which wait.
        target: The target's session.
        draft: The drafter's session.
        drafting: What grows trees with it.
        clock_s: Seconds that the steps took so far.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        max_new_tokens: int,
        seed: Seed,
        stop: Sequence[str],
    ) -> None:
        """Check everything and reserve the pools; arguments as in ``generate``."""
        self.decoder, self.sampling = decoder, sampling
        decoder.check(sampling)
        order = Order(prompts, max_new_tokens, seed, stop)
        stopping = Stopping(
            max_new_tokens=max_new_tokens,
            max_positions=decoder.target.max_positions,
            eos_ids=decoder.eos_ids,
            stop=tuple(stop),
            tokenizer=decoder.tokenizer,
        )
        self.requests = make_requests(
            order, decoder.target, stopping, decoder.controller.init
        )
        self.scheduler = Scheduler(
            [r for r in self.requests if r.finish_reason is None],
            decoder.max_concurrent,
        )
        waiting = self.scheduler.waiting
        most = min(decoder.max_concurrent, len(waiting))
        sizes = sorted(map(self._num_slots, waiting), reverse=True)
        self.target = ModelSession(decoder.target, _pool(sum(sizes[:most])))
        # Regions of one size, so that whoever the target has room for has room here.
        self._num_draft_slots = max(map(self._draft_slots, waiting), default=0)
        self.draft: AbstractDraftSession = decoder.drafter.start(
            DraftSetting(
                vocab_size=decoder.target.vocab_size,
                device=decoder.target.device,
                eos_ids=decoder.eos_ids,
                num_slots=_pool(most * self._num_draft_slots),
            )
        )
        # Elsewhere than on the CPU looking at tokens would mean waiting for them.
        looks = decoder.target.device.type == "cpu" and len(decoder.eos_ids) > 0
        self.drafting = Drafting(
            policy=decoder.policy,
            session=self.draft,
            sampling=sampling,
            vocab_size=decoder.target.vocab_size,
            eos=torch.tensor(sorted(decoder.eos_ids)) if looks else None,
        )
        self.clock_s = 0.0
        self._speculates = decoder.controller.largest.speculates

    def steps(self) -> Iterator[Committed]:
        """Decode until every request has ended."""
        for request in self.requests:
            if request.finish_reason is not None:
                yield Committed(request.key, (), request.finish_reason)
        while self.scheduler.has_work:
            self.scheduler.admit(self._enter)
            yield from self._step(self.scheduler.active)
            for request in self.scheduler.retire():
                self._leave(request)

    @torch.inference_mode()
    def _step(self, batch: Sequence[Request]) -> list[Committed]:
        """Draft, verify, accept and commit once for every active request."""
        watch = Stopwatch(self.decoder.target.device)
        drafts = [self._plan(request, len(batch)) for request in batch]
        plan_s = watch.lap()
        self.drafting.grow(drafts)
        draft_s = watch.lap()
        outputs = self._verify(drafts)
        verify_s = watch.lap()
        logits = [self._processed(d, o) for d, o in zip(drafts, outputs, strict=True)]
        accepted = [self._accept(d, x) for d, x in zip(drafts, logits, strict=True)]
        accept_s = watch.lap()
        now_s = self.clock_s + watch.total()
        outcomes = [
            self._commit(*part, now_s)
            for part in zip(drafts, outputs, logits, accepted, strict=True)
        ]
        phases = Phases(draft_s, plan_s, verify_s, accept_s, watch.lap(), watch.total())
        self._record(outcomes, phases)
        self.clock_s += watch.total()
        if self.decoder.trace:
            self._trace(outcomes)
        return [
            Committed(o.request.key, o.committed, o.request.finish_reason)
            for o in outcomes
        ]

    def _plan(self, request: Request, num_active: int) -> RequestDraft:
        """Begin a tree: its root, and what it may cost."""
        decoder, policy = self.decoder, self.decoder.policy
        budget, budget_by = OFF, "prefill"
        if not request.is_prefill:
            wish = decoder.controller.budget(request.controller_state)
            budget = request.fit(wish)
            set_by = type(decoder.controller).__name__
            budget_by = set_by if budget == wish else "limit"
        assert request.sequence is not None
        tokens, device = request.sequence.tokens, decoder.target.device
        situation = Situation(
            state=request.policy_state,
            length=len(tokens),
            remaining=request.remaining,
            num_unread=self.draft.num_unread(request.key) if self._speculates else 0,
            num_active=num_active,
            source_names=decoder.drafter.source_names,
            runs_model=decoder.drafter.runs_model,
        )
        tree = root_tree(tokens[-1], policy.proposal, device)
        draft = RequestDraft(
            request, budget, budget_by, situation, tree, torch.zeros_like(tree.tokens)
        )
        if budget.speculates:
            draft.may_forward = policy.opens(situation, budget)
        return draft

    def _verify(self, drafts: Sequence[RequestDraft]) -> list[VerifierOutput]:
        candidates = []
        for draft in drafts:
            assert draft.request.sequence is not None
            candidates.append(Candidate(draft.request.sequence, draft.tree))
        decoder = self.decoder
        layers = decoder.drafter.hidden_layers if self._speculates else ()
        return decoder.verifier.verify(self.target, candidates, layers)

    def _processed(self, draft: RequestDraft, output: VerifierOutput) -> Tensor:
        """Return the logits after every processor that reads the path."""
        assert draft.request.sequence is not None
        tree, committed = draft.tree, draft.request.sequence.tokens
        return self.sampling.apply_history(
            output.logits, tree.tokens, tree.parents, committed
        )

    def _accept(self, draft: RequestDraft, logits: Tensor) -> Acceptance:
        request = draft.request
        try:
            return self.decoder.acceptance.accept(
                draft.tree, logits, self.sampling, request.chance
            )
        except NumericalError as error:
            step = len(request.records) + (0 if request.is_prefill else 1)
            raise NumericalError(
                f"prompt {request.key}, step {step} (after {len(request.new_tokens)} "
                f"new tokens): {error}"
            ) from error

    def _commit(
        self,
        draft: RequestDraft,
        output: VerifierOutput,
        logits: Tensor,
        acceptance: Acceptance,
        now_s: float,
    ) -> StepOutcome:
        """Append the accepted path and the token that ends the step."""
        request, host = draft.request, draft.tree.host()
        was_prefill = request.is_prefill
        tokens = [host.tokens[node] for node in acceptance.node_ids]
        tokens.append(acceptance.next_token)
        tokens = tokens[: request.append(tokens, now_s)]
        assert request.sequence is not None
        node_ids = acceptance.node_ids[: len(tokens)]
        self.target.commit(request.sequence, node_ids, tokens)
        if self._speculates:
            feedback = self._feedback(draft, output, node_ids, tokens)
            self.draft.commit(request.key, feedback)
        return StepOutcome(
            request=request,
            budget=draft.budget,
            budget_by=draft.budget_by,
            tree=host,
            drafted=draft.tree,
            logits=logits,
            acceptance=acceptance,
            num_candidates=draft.num_candidates,
            num_unread=draft.situation.num_unread,
            num_draft_forwards=draft.num_forwards,
            forecast=draft.forecast,
            committed=tuple(tokens),
            is_step=not was_prefill,
        )

    def _feedback(
        self,
        draft: RequestDraft,
        output: VerifierOutput,
        node_ids: Sequence[int],
        tokens: Sequence[int],
    ) -> Feedback:
        """Return what the drafter is told about the step."""
        hidden, successors = output.hidden, None
        if hidden is not None:
            hidden = hidden[[0, *node_ids]]
        if k := self.decoder.drafter.num_successors:
            k = min(k, output.logits.shape[-1])
            best = output.logits.float().log_softmax(dim=-1).topk(k, dim=-1)
            successors = Successors(
                draft.tree.tokens, best.indices, best.values, (0, *node_ids)
            )
        grown_ids = draft.node_ids(node_ids)
        return Feedback(grown_ids, tuple(tokens), hidden, successors)

    def _record(self, outcomes: Sequence[StepOutcome], phases: Phases) -> None:
        """Append each request's share of the step to its records."""
        decoder, share = self.decoder, phases.shared(len(outcomes))
        names, controller = decoder.drafter.source_names, decoder.controller
        for outcome in outcomes:
            if not outcome.is_step:
                continue
            request = outcome.request
            record = record_step(outcome, share, names)
            request.records.append(record)
            request.controller_state = controller.observe(
                request.controller_state, record
            )
            request.policy_state = decoder.policy.observe(request.policy_state, record)

    def _trace(self, outcomes: Sequence[StepOutcome]) -> None:
        """Append every node of the recorded step; no request's clock sees it."""
        names = self.decoder.drafter.source_names
        for outcome in outcomes:
            if outcome.is_step:
                nodes = trace_nodes(outcome, self.sampling, names)
                outcome.request.traces.extend(nodes)

    def _num_slots(self, request: Request) -> int:
        """Return the most slots that a request can need: its text and one tree."""
        budget = request.fit(self.decoder.controller.largest)
        return request.max_length + budget.most_nodes

    def _draft_slots(self, request: Request) -> int:
        """Return the most slots that a request can need while its tree is grown."""
        budget = request.fit(self.decoder.controller.largest)
        prunes = self.decoder.policy.prunes
        most = budget.most_candidates if prunes else budget.most_nodes
        return request.max_length + most

    def _enter(self, request: Request) -> bool:
        """Reserve a request's slots in both models; false if there is no room."""
        request.sequence = self.target.admit(request.prompt, self._num_slots(request))
        if request.sequence is None:
            return False
        request.admitted_s = self.clock_s
        # Now, and not with the others: what they teach may be remembered.
        request.policy_state = self.decoder.policy.init()
        if self._speculates:
            self.draft.admit(request.key, request.prompt, self._num_draft_slots)
        return True

    def _leave(self, request: Request) -> None:
        """Give a finished request's slots back."""
        assert request.sequence is not None
        self.target.release(request.sequence)
        if self._speculates:
            self.draft.release(request.key)


def _pool(num_slots: int) -> int:
    """Return the size of a pool, if it is one.

    Raises:
        TreespecError: No memory holds so many tokens.
    """
    if num_slots > MAX_SLOTS:
        raise TreespecError(
            f"texts and trees would need {num_slots} slots of keys and values, more "
            f"than {MAX_SLOTS}; lower controller.max_depth, controller.max_width or "
            "controller.max_nodes, or max_concurrent"
        )
    return num_slots
