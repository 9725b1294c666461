"""Bounds on what decisions can save, computed on traces. They decode nothing."""
