"""What shape does the tree get?"""

from treespec.policies.base import (
    AbstractDraftPolicy,
    Growth,
    as_layer,
    drawn_layer,
    layer_limit,
)
from treespec.policies.best_first import BestFirst
from treespec.policies.chain import Chain, SampledChain
from treespec.policies.confidence_tree import ConfidenceTree
from treespec.policies.sampled_best_first import SampledBestFirst
from treespec.policies.sampled_tree import SampledTree
from treespec.policies.top_k_tree import TopKTree

__all__ = [
    "AbstractDraftPolicy",
    "BestFirst",
    "Chain",
    "ConfidenceTree",
    "Growth",
    "SampledBestFirst",
    "SampledChain",
    "SampledTree",
    "TopKTree",
    "as_layer",
    "drawn_layer",
    "layer_limit",
]
