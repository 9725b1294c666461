"""Studies of `python -m draftgym study NAME`: the science; pages are in `docs/studies/`."""
