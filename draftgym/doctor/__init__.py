"""Whether speculation pays on this machine for this pair, and why."""
