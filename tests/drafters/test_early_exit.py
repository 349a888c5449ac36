"""Public case 32: the target's lower layers draft, and the target never notices."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.oracles import assert_no_slot_leaks, greedy_oracle, reference
from tests.scripts import make_tree
from tests.tiny import FAMILIES, Family, tiny_model
from treespec.acceptance import Greedy
from treespec.controllers import Constant
from treespec.decoder import SpeculativeDecoder
from treespec.drafters import DraftSetting, EarlyExit, Feedback, Frontier
from treespec.errors import TreespecError
from treespec.models.fbgemm import has_fbgemm
from treespec.models.huggingface import ATTENTION, HuggingFaceModel
from treespec.models.packed_linear import pack_linear_layers
from treespec.models.quantize import quantize
from treespec.models.session import Feed, ModelSession
from treespec.policies import AbstractDraftPolicy, Chain, TopKTree
from treespec.testing import check_drafter
from treespec.testing.toys import random_model, table_model
from treespec.tree import NO_PARENT
from treespec.verifiers import TreeAttention

NUM_LAYERS = 4
PROMPTS = ([1, 5, 6, 7, 8, 5, 6, 7, 5], [3], [1, *range(9, 21), 9, 10])


def target_of(family: Family, attention: str = ATTENTION) -> HuggingFaceModel:
    return HuggingFaceModel(tiny_model(family, 1, num_layers=NUM_LAYERS), attention)


def decoder(
    target: HuggingFaceModel, exit_layer: int, policy: AbstractDraftPolicy
) -> SpeculativeDecoder:
    return SpeculativeDecoder(
        target,
        EarlyExit(target, exit_layer),
        policy,
        Greedy(),
        TreeAttention(),
        Constant(max_depth=3, max_width=8, max_nodes=14),
    )


@cache
def expected(family: Family, num_tokens: int) -> list[tuple[int, ...]]:
    module = reference(family, 1, NUM_LAYERS)
    return [tuple(greedy_oracle(module, prompt, num_tokens)) for prompt in PROMPTS]


def logits_of(model: HuggingFaceModel) -> Tensor:
    session = ModelSession(model, 32)
    sequence = session.admit(PROMPTS[0], 32)
    assert sequence is not None
    with torch.inference_mode():
        return session.run([Feed(sequence)])[0].logits


@pytest.mark.parametrize("policy", [Chain(), TopKTree(2)], ids=repr)
@pytest.mark.parametrize("exit_layer", range(1, NUM_LAYERS + 1))
@pytest.mark.parametrize("family", FAMILIES)
def test_every_exit_leaves_the_text_as_it_was(
    family: Family, exit_layer: int, policy: AbstractDraftPolicy
) -> None:
    speculative = decoder(target_of(family), exit_layer, policy)
    results = speculative.generate(PROMPTS, max_new_tokens=10)
    assert [result.tokens for result in results] == expected(family, 10)


@pytest.mark.parametrize("policy", [Chain(), TopKTree(2)], ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_at_the_last_layer_is_accepted_whole(
    family: Family, policy: AbstractDraftPolicy
) -> None:
    """Oracle O4: tokens per round are depth + 1, the last block excepted."""
    results = decoder(target_of(family), NUM_LAYERS, policy).generate(
        PROMPTS, max_new_tokens=18
    )
    for result in results:
        *blocks, _ = result.steps
        assert [record.num_committed for record in blocks] == [4] * len(blocks)
        assert len(blocks) == 4


@pytest.mark.parametrize("attention", ["sdpa", "eager", ATTENTION])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_lower_layers_say_what_a_shorter_model_says(
    family: Family, attention: str
) -> None:
    """The target's attention function is set for both, in whatever order they run."""
    target = target_of(family, attention)
    for num_layers in (1, 2, 3):
        short = tiny_model(family, 1, num_layers=num_layers)
        weights = target.module.state_dict()
        short.load_state_dict({name: weights[name] for name in short.state_dict()})
        lower = target.lower_layers(num_layers)
        assert lower.num_layers == num_layers
        got = logits_of(lower)
        torch.testing.assert_close(got, logits_of(HuggingFaceModel(short, attention)))
        logits_of(target)
        target.module.set_attn_implementation("sdpa")
        assert torch.equal(logits_of(lower), got)
        assert target.module.config._attn_implementation == attention


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_is_held_twice(family: Family) -> None:
    target = target_of(family)
    lower = target.lower_layers(2).module
    ours = {weight.data_ptr() for weight in target.module.parameters()}
    theirs = {weight.data_ptr() for weight in lower.parameters()}
    assert theirs < ours
    assert lower.get_output_embeddings() is target.module.get_output_embeddings()


@pytest.mark.skipif(not has_fbgemm(), reason="FBGEMM is for x86")
def test_packed_and_quantized_layers_are_shared_too() -> None:
    for change in (
        pack_linear_layers,
        lambda module: quantize(module, "int8", "pair.target"),
    ):
        target = target_of("qwen2")
        change(target.module)
        plain = decoder(target, 2, TopKTree(2)).autoregressive()
        results = decoder(target, 2, TopKTree(2)).generate(PROMPTS, max_new_tokens=12)
        again = plain.generate(PROMPTS, max_new_tokens=12)
        assert [r.tokens for r in results] == [r.tokens for r in again]
        for part in target.lower_layers(2).module.modules():
            if type(part).__name__ in {"PackedLinear", "Int8Linear"}:
                assert part in set(target.module.modules())


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything that a module is, as far as it can be written down."""
    parts = dict(module.named_modules())
    config: Any = module.config
    return {
        "weights": {k: v.clone() for k, v in module.state_dict().items()},
        "config": deepcopy(config.to_dict()),
        "attention": config._attn_implementation,
        "parts": {name: id(part) for name, part in parts.items()},
        "fields": {name: sorted(vars(part)) for name, part in parts.items()},
        "hooks": {
            name: len(part._forward_hooks) + len(part._forward_pre_hooks)
            for name, part in parts.items()
        },
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exception_while_drafting_leaves_the_target_whole(family: Family) -> None:
    """Case 32: layers that were swapped out for the draft stayed away after it."""
    target = target_of(family)
    speculative = decoder(target, 3, TopKTree(2))
    logits = logits_of(target)
    before = state_of(target.module)
    boom = _raises_while_drafting(target, 3)
    with pytest.raises(RuntimeError, match="boom"):
        speculative.generate(PROMPTS, max_new_tokens=12)
    boom.remove()
    after = state_of(target.module)
    torch.testing.assert_close(after.pop("weights"), before.pop("weights"), **EXACT)
    assert after == before
    assert torch.equal(logits_of(target), logits)
    results = speculative.generate(PROMPTS, max_new_tokens=12)
    assert [result.tokens for result in results] == expected(family, 12)


EXACT = {"rtol": 0, "atol": 0}


def _raises_while_drafting(target: HuggingFaceModel, num_layers: int) -> Any:
    """Let layer 1 fail in the second forward that has only ``num_layers`` layers."""
    stack = next(p for p in target.module.modules() if isinstance(p, nn.ModuleList))
    calls = []

    def hook(layer: nn.Module, arguments: object, named: dict[str, Any]) -> None:
        calls.append(len(named["treespec_call"].windows))
        if calls.count(num_layers) == 2:
            raise RuntimeError("boom")

    return stack[1].register_forward_pre_hook(hook, with_kwargs=True)


def test_what_is_hung_on_a_view_does_not_reach_the_target() -> None:
    target = target_of("llama")
    before = state_of(target.module)
    lower = target.lower_layers(1).module
    lower.register_forward_hook(lambda *_: None)
    lower.model.register_forward_hook(lambda *_: None)
    lower.model.extra = nn.Linear(2, 2)
    lower.config.vocab_size = 7
    after = state_of(target.module)
    del before["weights"], after["weights"]
    assert after == before


def test_all_layers_keep_step_after_every_round() -> None:
    """A layer that lags behind would hold zeros in a slot of the committed text."""
    num_layers = 3
    setting = DraftSetting(32, torch.device("cpu"), frozenset(), 64)
    session = EarlyExit(target_of("gemma3"), num_layers).start(setting)
    session.admit(0, PROMPTS[0], 64)
    root = PROMPTS[0][-1]
    with torch.inference_mode():
        for node_ids, tokens in (((1,), (4, 9)), ((), (5,)), ((2,), (6, 8))):
            tree = make_tree([root, 4, 6], [NO_PARENT, 0, 0])
            session.expand([Frontier(0, tree, torch.tensor([0]), 0)])
            session.expand([Frontier(0, tree, torch.tensor([1, 2]), 1)])
            session.commit(0, Feedback(node_ids, tokens))
            root = tokens[-1]
            sequence = session.sequences[0]
            assert_no_slot_leaks(session.session, [sequence])
            line = torch.tensor(sequence.line)
            for layer in range(num_layers):
                keys = session.session.cache.layer(layer).keys[:, line]
                assert (keys.abs().sum(dim=(0, 2)) > 0).all()


def test_lower_layers_refuse_to_give_hidden_states() -> None:
    lower = target_of("llama").lower_layers(2)
    session = ModelSession(lower, 32)
    sequence = session.admit(PROMPTS[0], 32)
    assert sequence is not None
    with pytest.raises(TreespecError, match="give no hidden states"):
        session.run([Feed(sequence)], (1,))


def test_a_module_without_one_list_of_layers_is_refused() -> None:
    target = target_of("llama")
    target.module.model.layers = nn.Sequential(*target.module.model.layers)
    with pytest.raises(TreespecError, match="LlamaForCausalLM does not keep its"):
        target.lower_layers(2)


@pytest.mark.parametrize("exit_layer", [0, 5, 2.0, True, None])
def test_an_exit_that_the_model_does_not_have_is_refused(exit_layer: Any) -> None:
    with pytest.raises(TreespecError, match=r"^drafter\.exit_layer must") as caught:
        EarlyExit(target_of("llama"), exit_layer)
    assert f"got {exit_layer}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_model_the_way_out_is_named() -> None:
    with pytest.raises(TreespecError, match=r"drafter\.model=pair\.target"):
        EarlyExit("target", 1)  # type: ignore[arg-type]


def test_it_keeps_the_contract_of_a_drafter() -> None:
    check_drafter(EarlyExit(table_model(random_model(8, 0), 8), 1))
