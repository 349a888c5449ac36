"""Quality measures: what a text is worth, besides being fast."""

from treespec.measures.base import AbstractQualityMeasure
from treespec.measures.bleu import Bleu
from treespec.measures.exact_answer import ExactAnswer
from treespec.measures.pass_at_one import PassAtOne
from treespec.measures.rouge import RougeL

__all__ = [
    "AbstractQualityMeasure",
    "Bleu",
    "ExactAnswer",
    "PassAtOne",
    "RougeL",
]
