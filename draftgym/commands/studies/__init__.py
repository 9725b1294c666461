"""Studies of `python -m draftgym study NAME`: one module each, imported only when asked for."""
