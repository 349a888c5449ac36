"""What shape does the tree get?"""

from treespec.policies.base import (
    AbstractDraftPolicy,
    Growth,
    Situation,
    as_layer,
    children_of,
    drawn_children,
    drawn_layer,
    layer_limit,
)
from treespec.policies.best_first import BestFirst
from treespec.policies.chain import Chain, SampledChain
from treespec.policies.confidence_tree import ConfidenceTree
from treespec.policies.entropy_stop import EntropyStop
from treespec.policies.planner import Planner
from treespec.policies.ready_trees import (
    calibrated_tree,
    comb_tree,
    geometric_tree,
    given_tree,
    optimal_tree,
)
from treespec.policies.sampled_best_first import SampledBestFirst
from treespec.policies.sampled_planner import SampledPlanner
from treespec.policies.sampled_tree import SampledTree
from treespec.policies.shape import TreeShape
from treespec.policies.static_tree import StaticTree
from treespec.policies.top_k_tree import TopKTree

__all__ = [
    "AbstractDraftPolicy",
    "BestFirst",
    "Chain",
    "ConfidenceTree",
    "EntropyStop",
    "Growth",
    "Planner",
    "SampledBestFirst",
    "SampledChain",
    "SampledPlanner",
    "SampledTree",
    "Situation",
    "StaticTree",
    "TopKTree",
    "TreeShape",
    "as_layer",
    "calibrated_tree",
    "children_of",
    "comb_tree",
    "drawn_children",
    "drawn_layer",
    "geometric_tree",
    "given_tree",
    "layer_limit",
    "optimal_tree",
]
