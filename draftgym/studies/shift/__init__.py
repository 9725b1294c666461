"""What carries over between domains, languages and temperatures, worked out on traces."""
