"""Honest comparisons: what a method costs per token, measured beside plain decoding."""
