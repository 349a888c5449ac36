"""Acceptance rules with one mistake each."""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from treespec.acceptance import AbstractAcceptanceRule, SampleAndMatch
from treespec.acceptance.base import follow, target_law
from treespec.chance import AbstractChance, GeneratorChance
from treespec.errors import NumericalError
from treespec.sampling import Sampling
from treespec.tree import TokenTree
from treespec.types import Acceptance, ProposalKind

WITH, WITHOUT = ProposalKind.WITH_REPLACEMENT, ProposalKind.WITHOUT_REPLACEMENT
MATCH = SampleAndMatch()


@dataclass(frozen=True, slots=True)
class FaultyRejection(AbstractAcceptanceRule):
    """Rejection in turn whose parts can be replaced by wrong ones."""

    kind: ProposalKind = WITH
    ratio: Callable[[Tensor, Tensor], Tensor] = torch.div
    zeroes: bool = False
    zeroes_first: bool = False
    skips_repeated: bool = False
    recovers_from_target: bool = False
    sorts: bool = False

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        return MappingProxyType({self.kind: None})

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        host = tree.host()
        children = host.children()
        path = [0]
        while children[path[-1]]:
            node = path[-1]
            p = target_law(target_logits, node, sampling)
            assert tree.draft_probs is not None
            q = tree.draft_probs[host.draft_rows[node]]
            found = self._test(children[node], host.tokens, p, q, chance)
            if found is None or found < 0:
                token = -found - 1 if found is not None else 0
                return Acceptance(tuple(path[1:]), token, "recovered")
            path.append(found)
        p = target_law(target_logits, path[-1], sampling)
        return Acceptance(tuple(path[1:]), int(chance.draw(p)), "bonus")

    def _test(
        self,
        nodes: Sequence[int],
        tokens: Sequence[int],
        p: Tensor,
        q: Tensor,
        chance: AbstractChance,
    ) -> int:
        """Return the accepted node, or the recovered token x as -x - 1."""
        target, tested = p, set()
        if self.sorts:
            nodes = sorted(nodes, key=lambda node: -float(q[tokens[node]]))
        for node in nodes:
            token = tokens[node]
            if self.skips_repeated and token in tested:
                continue
            tested.add(token)
            if chance.accepts(self.ratio(p[token], q[token])):
                return node
            others = q.index_fill(0, torch.tensor(token), 0.0)
            others = others / others.sum() if others.sum() > 0 else others
            left = (p - (others if self.zeroes_first else q)).clamp(min=0)
            if left.sum() == 0:
                return node
            p = left / left.sum()
            q = others if self.zeroes or self.zeroes_first else q
        law = target if self.recovers_from_target else p
        return -int(chance.draw(law)) - 1


@dataclass(frozen=True, slots=True)
class Wrapped(AbstractAcceptanceRule):
    """A right rule in which a test puts something wrong."""

    rule: AbstractAcceptanceRule = MATCH

    lossless = True
    greedy_only = False
    draws_like_autoregressive = False

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        return self.rule.proposals

    def accept(
        self,
        tree: TokenTree,
        target_logits: Tensor,
        sampling: Sampling,
        chance: AbstractChance,
    ) -> Acceptance:
        return self.rule.accept(tree, target_logits, sampling, chance)


class ForAny(Wrapped):
    """Claims any sampled proposal for a rule that takes one."""

    @property
    def proposals(self) -> Mapping[ProposalKind, int | None]:
        return MappingProxyType({WITH: None, WITHOUT: None})


class WrongBelowSecondSiblings(Wrapped):
    """Right on chains, and on all trees as long as first children are accepted."""

    def accept(self, tree, target_logits, sampling, chance):
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        if answer.node_ids and tree.host().ranks()[answer.node_ids[-1]] == 1:
            return replace(answer, next_token=int(target_logits[0].argmax()))
        return answer


class LooksUpTheWrongRow(Wrapped):
    """Takes a node's logits from the row before it (public case 15)."""

    def accept(self, tree, target_logits, sampling, chance):
        rows = torch.cat((target_logits[:1], target_logits[:-1]))
        return self.rule.accept(tree, rows, sampling, chance)


class TakesNodesForRows(Wrapped):
    """Takes a node's draft law from the row of its number: right if all have one."""

    def accept(self, tree, target_logits, sampling, chance):
        if tree.draft_probs is not None:
            last = tree.draft_probs.shape[0] - 1
            rows = torch.arange(tree.size).clamp(max=last)
            tree = replace(tree, draft_rows=rows)
        return self.rule.accept(tree, target_logits, sampling, chance)


class TakesSiblingsForNeighbours(Wrapped):
    """Looks for a node's children right after the first of them."""

    def accept(self, tree, target_logits, sampling, chance):
        host, path = tree.host(), [0]
        while path[-1] in host.parents:
            first = host.parents.index(path[-1])
            below = range(first, first + host.parents.count(path[-1]))
            token = int(chance.draw(target_law(target_logits, path[-1], sampling)))
            match = next((node for node in below if host.tokens[node] == token), None)
            if match is None:
                return Acceptance(tuple(path[1:]), token, "recovered")
            path.append(match)
        token = int(chance.draw(target_law(target_logits, path[-1], sampling)))
        return Acceptance(tuple(path[1:]), token, "bonus")


class BreaksTiesToTheLast(Wrapped):
    """Takes the last of the likeliest tokens, where plain decoding takes the first."""

    greedy_only = True

    def accept(self, tree, target_logits, sampling, chance):
        last = target_logits.shape[-1] - 1 - target_logits.flip(-1).argmax(-1)
        return follow(tree.host(), lambda node: int(last[node]))


class IgnoresTopP(Wrapped):
    """Reads top_p only if there is a top_k."""

    def accept(self, tree, target_logits, sampling, chance):
        if sampling.top_k == 0:
            sampling = replace(sampling, top_p=1.0)
        return self.rule.accept(tree, target_logits, sampling, chance)


class AddsToEveryToken(Wrapped):
    """Gives tokens that the target never says far less than any tolerance."""

    def accept(self, tree, target_logits, sampling, chance):
        law = sampling.probs(target_logits)
        law = (law + 1e-14) / (law + 1e-14).sum(dim=-1, keepdim=True)
        return self.rule.accept(tree, law.log(), Sampling(1.0), chance)


class HalvesSingles(Wrapped):
    """Computes in half precision, but only where logits are what models return."""

    def accept(self, tree, target_logits, sampling, chance):
        if target_logits.dtype == torch.float32:
            target_logits = target_logits.half()
        return self.rule.accept(tree, target_logits, sampling, chance)


class Exits(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        sys.exit(0)


class SetsTheDefaultDtype(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        torch.set_default_dtype(torch.float64)
        return self.rule.accept(tree, target_logits, sampling, chance)


class TurnsGradientsOff(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        torch.set_grad_enabled(False)
        return self.rule.accept(tree, target_logits, sampling, chance)


class SetsThreads(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        torch.set_num_threads(7)
        return self.rule.accept(tree, target_logits, sampling, chance)


class KeepsUniforms(Wrapped):
    """Draws its uniforms once and uses them in every step."""

    def __init__(self) -> None:
        object.__setattr__(self, "rule", SampleAndMatch())
        self.__dict__["kept"] = []

    def accept(self, tree, target_logits, sampling, chance):
        kept = self.__dict__["kept"]
        if not kept:
            kept.append(chance.draw(torch.full((1, 64), 1 / 64, dtype=torch.float64)))
        law = sampling.probs(target_logits[0])
        token = int((law.cumsum(0) <= float(kept[0]) / 64).sum())
        has_children = tree.size > 1
        return Acceptance((), token, "recovered" if has_children else "bonus")


class UsesGlobalRandomness(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        torch.rand(1)
        return self.rule.accept(tree, target_logits, sampling, chance)


class UsesPythonsRandomness(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        random.random()
        return self.rule.accept(tree, target_logits, sampling, chance)


class WritesToLogits(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        target_logits.sub_(1)
        return self.rule.accept(tree, target_logits, sampling, chance)


class WritesToDraftProbs(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        if tree.draft_probs is not None:
            tree.draft_probs[0, 0] += 0.5
        return self.rule.accept(tree, target_logits, sampling, chance)


class AlwaysBonus(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, next_kind="bonus")


class SkipsTheFirstNode(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, node_ids=answer.node_ids[1:])


class ReturnsATensor(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, next_token=torch.tensor(answer.next_token))


class IgnoresNaN(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        numbers = target_logits.nan_to_num(posinf=9.0)
        return self.rule.accept(tree, numbers, sampling, chance)


class NeedsDraftProbs(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        len(tree.draft_probs)
        return self.rule.accept(tree, target_logits, sampling, chance)


class SeedsItsOwn(Wrapped):
    """Decides with a generator that is the same in every call."""

    def accept(self, tree, target_logits, sampling, chance):
        own = GeneratorChance(torch.Generator().manual_seed(0))
        return self.rule.accept(tree, target_logits, sampling, own)


class CertainIsEnough(FaultyRejection):
    """Takes a child at once that the target is nearly certain of."""

    def _test(self, nodes, tokens, p, q, chance):
        for node in nodes:
            if p[tokens[node]] > 1 - 1e-3:
                return node
        return super()._test(nodes, tokens, p, q, chance)


class CastsToFloat32(FaultyRejection):
    def _test(self, nodes, tokens, p, q, chance):
        return super()._test(nodes, tokens, p.float(), q.float(), chance)


class RefusesBannedTokens(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        if not bool(target_logits.isfinite().all()):
            raise NumericalError("no number")
        return self.rule.accept(tree, target_logits, sampling, chance)


class StatesNothing(Wrapped):
    @property
    def lossless(self):
        raise LookupError("not decided")


class DrawsTheTokenGlobally(Wrapped):
    def accept(self, tree, target_logits, sampling, chance):
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        return replace(answer, next_token=int(torch.randint(2, ())))


class AsksForNothing(Wrapped):
    """Its mistake is noticed inside the package; its own line is what helps."""

    def accept(self, tree, target_logits, sampling, chance):
        sampling.probs(None)
        return self.rule.accept(tree, target_logits, sampling, chance)


class DrawsTwice(Wrapped):
    draws_like_autoregressive = True

    def accept(self, tree, target_logits, sampling, chance):
        answer = self.rule.accept(tree, target_logits, sampling, chance)
        if tree.size > 1:
            chance.draw(torch.tensor([0.5, 0.5]))
        return answer


class Refuses(Wrapped):
    def check(self, proposal, max_children, ends_siblings_early, sampling, policy_name):
        return None


class TakesOneMore(Wrapped):
    def check(self, proposal, max_children, ends_siblings_early, sampling, policy_name):
        most = max_children and max(1, max_children - 1)
        self.rule.check(proposal, most, ends_siblings_early, sampling, policy_name)


class TakesAnyNumber(Wrapped):
    def check(self, proposal, max_children, ends_siblings_early, sampling, policy_name):
        most = max_children or 1
        self.rule.check(proposal, most, ends_siblings_early, sampling, policy_name)


class TakesAnyTemperature(Wrapped):
    greedy_only = True

    def check(self, proposal, max_children, ends_siblings_early, sampling, policy_name):
        early = ends_siblings_early
        self.rule.check(proposal, max_children, early, Sampling(), policy_name)


class TakesEarlyEnds(Wrapped):
    takes_early_ends = False

    def check(self, proposal, max_children, ends_siblings_early, sampling, policy_name):
        self.rule.check(proposal, max_children, False, sampling, policy_name)
