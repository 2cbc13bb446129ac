"""The virtual server of Surefoot as a Gymnasium environment (docs/gym.md).

Importing this module registers `ENV_ID`. Its version is the edition of the plant: figures of two editions are of two servers.
"""

import gymnasium

from surefoot_gym._native import PLANT, POLICIES, SETS
from surefoot_gym.env import VirtualServerEnv
from surefoot_gym.frame import COLUMNS, MARKS, PARTS, REFUSED, SERVER_COLUMNS, TOLD, UNKNOWN
from surefoot_gym.settings import REWARDS, action_row, equal_shares, stay
from surefoot_gym.vector import VirtualServerVectorEnv

ENV_ID = f"surefoot/VirtualServer-v{PLANT}"

__all__ = [
    "COLUMNS",
    "ENV_ID",
    "MARKS",
    "PARTS",
    "PLANT",
    "POLICIES",
    "REFUSED",
    "REWARDS",
    "SERVER_COLUMNS",
    "SETS",
    "TOLD",
    "UNKNOWN",
    "VirtualServerEnv",
    "VirtualServerVectorEnv",
    "action_row",
    "equal_shares",
    "stay",
]

if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        id=ENV_ID,
        entry_point="surefoot_gym.env:VirtualServerEnv",
        vector_entry_point="surefoot_gym.vector:VirtualServerVectorEnv",
    )
