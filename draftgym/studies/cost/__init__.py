"""`study cost`: what a constant acceptance says of chains, and what the pair says."""
