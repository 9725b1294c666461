"""The speculative decoder: models, cache, tree, drafters and the one decoding loop."""
