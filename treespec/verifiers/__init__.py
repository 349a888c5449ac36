"""What does the target say at every node?"""

from treespec.verifiers.base import AbstractVerifier, Candidate, VerifierOutput
from treespec.verifiers.sequential import Sequential
from treespec.verifiers.tree_attention import TreeAttention

__all__ = [
    "AbstractVerifier",
    "Candidate",
    "Sequential",
    "TreeAttention",
    "VerifierOutput",
]
