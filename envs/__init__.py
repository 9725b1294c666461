"""Gymnasium environments over one live decoder session, or over a trace of one.

Importing this package registers the environments by name; nothing else is loaded until one is
made. Only `envs.replay` knows a training library: it is its interface to many at once.
"""

from gymnasium.envs.registration import register

# Wall time is part of every observation's and reward's past, hence not deterministic.
register(id="DraftGym/DraftDepth-v0", entry_point="envs.depth:DraftDepthEnv", nondeterministic=True)
register(id="DraftGym/VerifySize-v0", entry_point="envs.size:VerifySizeEnv", nondeterministic=True)

# Their seconds are drawn from measured samples.
register(
    id="DraftGym/DraftDepthReplay-v0",
    entry_point="envs.replay_single:DraftDepthReplayEnv",
    nondeterministic=True,
)
register(
    id="DraftGym/VerifySizeReplay-v0",
    entry_point="envs.replay_single:VerifySizeReplayEnv",
    nondeterministic=True,
)
