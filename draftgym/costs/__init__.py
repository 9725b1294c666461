"""What the parts of a round cost on this machine: measured rounds, and the table made of them."""
