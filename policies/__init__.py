"""PPO policies: configuration, rollouts, the alternating trainer, checkpoints and export.

It drives any environment that keeps the conventions of `policies.rollout`; it does not know
the environments themselves.
"""
