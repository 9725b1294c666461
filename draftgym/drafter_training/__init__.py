"""Train an EAGLE-3 head for a target: answers, cached features, training-time test."""
