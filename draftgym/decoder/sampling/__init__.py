"""Sampling: the settings, the warped distribution and the keyed noise that draws from it.

Knows no model, no cache and no verification rule; everything here is a pure function.
"""

from __future__ import annotations

from draftgym.decoder.sampling.noise import gumbel, uniform
from draftgym.decoder.sampling.settings import SamplingSettings
from draftgym.decoder.sampling.warp import warp

__all__ = ["SamplingSettings", "gumbel", "uniform", "warp"]
