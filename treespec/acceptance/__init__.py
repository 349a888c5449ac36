"""Acceptance rules: which path of a verified tree survives, and what ends it."""

from treespec.acceptance.base import AbstractAcceptanceRule
from treespec.acceptance.chain_speculative import ChainSpeculative
from treespec.acceptance.greedy import Greedy
from treespec.acceptance.sample_and_match import SampleAndMatch

__all__ = ["AbstractAcceptanceRule", "ChainSpeculative", "Greedy", "SampleAndMatch"]
