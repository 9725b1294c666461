"""Verbs of `python -m draftgym`: one module each, imported only when asked for."""
