"""Acceptance rules: which path of a verified tree survives, and what ends it."""

from treespec.acceptance.base import AbstractAcceptanceRule
from treespec.acceptance.block_verification import BlockVerification
from treespec.acceptance.chain_speculative import ChainSpeculative
from treespec.acceptance.greedy import Greedy
from treespec.acceptance.greedy_draft_transport import GreedyDraftTransport
from treespec.acceptance.k_seq import KSeq
from treespec.acceptance.nodewise import AbstractNodewiseRule, Siblings, recover
from treespec.acceptance.optimum import optimal_acceptance
from treespec.acceptance.rejection_with_replacement import RejectionWithReplacement
from treespec.acceptance.rejection_without_replacement import (
    RejectionWithoutReplacement,
)
from treespec.acceptance.sample_and_match import SampleAndMatch
from treespec.acceptance.spec_hub import SpecHub
from treespec.acceptance.traversal_verification import TraversalVerification
from treespec.acceptance.typical_acceptance import TypicalAcceptance

__all__ = [
    "AbstractAcceptanceRule",
    "AbstractNodewiseRule",
    "BlockVerification",
    "ChainSpeculative",
    "Greedy",
    "GreedyDraftTransport",
    "KSeq",
    "RejectionWithReplacement",
    "RejectionWithoutReplacement",
    "SampleAndMatch",
    "Siblings",
    "SpecHub",
    "TraversalVerification",
    "TypicalAcceptance",
    "optimal_acceptance",
    "recover",
]
