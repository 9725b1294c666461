"""Gymnasium environments over one live decoder session.

Importing this package registers the environments by name; nothing else is loaded until one is
made. They know nothing of training libraries.
"""

from gymnasium.envs.registration import register

# Wall time is part of every observation's and reward's past, hence not deterministic.
register(id="DraftGym/DraftDepth-v0", entry_point="envs.depth:DraftDepthEnv", nondeterministic=True)
register(id="DraftGym/VerifySize-v0", entry_point="envs.size:VerifySizeEnv", nondeterministic=True)
