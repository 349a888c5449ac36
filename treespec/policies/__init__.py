"""What shape does the tree get?"""

from treespec.policies.base import (
    AbstractDraftPolicy,
    Growth,
    as_layer,
    drawn_layer,
    layer_limit,
)
from treespec.policies.chain import Chain, SampledChain
from treespec.policies.sampled_tree import SampledTree
from treespec.policies.top_k_tree import TopKTree

__all__ = [
    "AbstractDraftPolicy",
    "Chain",
    "Growth",
    "SampledChain",
    "SampledTree",
    "TopKTree",
    "as_layer",
    "drawn_layer",
    "layer_limit",
]
