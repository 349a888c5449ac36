"""How much may be spent on the next step?"""

from treespec.controllers.base import AbstractController
from treespec.controllers.constant import Constant

__all__ = ["AbstractController", "Constant"]
