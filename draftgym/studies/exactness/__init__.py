"""Correcting is not resampling: the exact laws, counted trials, and the model pair."""
