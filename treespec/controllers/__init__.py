"""How much may be spent on the next step?"""

from treespec.controllers.adaptive_depth import AdaptiveDepth, DepthState
from treespec.controllers.bandit import Arm, Bandit
from treespec.controllers.base import AbstractController, replay
from treespec.controllers.constant import Constant
from treespec.controllers.heuristic_depth import HeuristicDepth
from treespec.controllers.off_switch import OffSwitch, SwitchState

__all__ = [
    "AbstractController",
    "AdaptiveDepth",
    "Arm",
    "Bandit",
    "Constant",
    "DepthState",
    "HeuristicDepth",
    "OffSwitch",
    "SwitchState",
    "replay",
]
