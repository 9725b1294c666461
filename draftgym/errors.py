"""Errors that a user can act on.

The command line prints these as one line without a traceback; anything else is a bug and
keeps its traceback.
"""

from __future__ import annotations


class DraftGymError(Exception):
    """Base of all errors that name what is wrong and what to do about it."""


class ConfigurationError(DraftGymError, ValueError):
    """A configuration file or value was rejected; the message names the field."""


class BrokenLogitsError(DraftGymError, FloatingPointError):
    """The target's logits are NaN or hold no finite maximum; the message names the position."""


class SourceError(DraftGymError, RuntimeError):
    """A model source could not be found, fetched, verified or converted."""
