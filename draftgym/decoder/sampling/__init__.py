"""Sampling: the settings, the warped distribution and the keyed noise that draws from it.

Knows no model, no cache and no verification rule; everything here is a pure function. The
settings need no torch: import what is needed from its own module.
"""
