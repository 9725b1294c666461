"""Rejoin: whether the tail of a rejected draft is worth keeping."""
