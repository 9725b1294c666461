"""Drafters: whatever proposes tokens. A new one is a new file here and one line in the registry
of `draftgym.decoder.pair`."""
