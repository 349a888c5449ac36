"""A module's first layers as a model of their own, without a copy of any weight.

A view is made of new objects for the few modules that hold the stack of layers, and
shares everything else with the module: layers, embedding, final norm, head. Nothing is
written to the module, so nothing has to be put back, whatever happens in a forward.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from treespec.errors import TreespecError


def lower_layers_of(module: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """Return a view of a module's first ``num_layers`` layers, then its norm and head.

    The layers keep reading the module's own configuration, so the two must use the
    same attention function.

    Args:
        module: A causal language model.
        num_layers: From 1 to the number of its layers.

    Raises:
        TreespecError: Its layers do not stand in one list.
    """
    text = module.config.get_text_config()
    assert 1 <= num_layers <= text.num_hidden_layers
    holders = next(_holders_of_stack(module, int(text.num_hidden_layers)), None)
    if holders is None:
        raise TreespecError(
            f"{type(module).__name__} does not keep its layers in one list, so its "
            "lower layers cannot be used alone; choose another drafter"
        )
    config = _cut_config(module.config, num_layers)
    *path, (stack_name, stack) = holders
    child: nn.Module = nn.ModuleList(list(stack.children())[:num_layers])
    child.training = stack.training
    name = stack_name
    for parent_name, parent in reversed(path):
        child = _with_child(parent, name, child, config)
        name = parent_name
    view = _with_child(module, name, child, config)
    assert isinstance(view, PreTrainedModel)
    return view


def _holders_of_stack(
    module: nn.Module, num_layers: int
) -> Iterator[list[tuple[str, nn.Module]]]:
    """Yield the ways down to a list of that many layers, as names and modules."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            if len(child) == num_layers and hasattr(child[0], "forward"):
                yield [(name, child)]
        else:
            for below in _holders_of_stack(child, num_layers):
                yield [(name, child), *below]


def _with_child(
    module: nn.Module, name: str, child: nn.Module, config: PreTrainedConfig
) -> nn.Module:
    """Return a module that differs in one child, and in its configuration.

    Its tables (children, parameters, hooks) are its own; what they list is shared.
    """
    view = copy.copy(module)
    for key, value in vars(module).items():
        if isinstance(value, dict):
            vars(view)[key] = copy.copy(value)
    setattr(view, name, child)
    if isinstance(view, PreTrainedModel):
        view.config = config
    return view


def _cut_config(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """Return a copy of a configuration that speaks of the first layers only."""
    cut = copy.deepcopy(config)
    text = cut.get_text_config()
    kinds = getattr(text, "layer_types", None)
    text.num_hidden_layers = num_layers
    if kinds is not None:
        text.layer_types = list(kinds)[:num_layers]
    return cut
