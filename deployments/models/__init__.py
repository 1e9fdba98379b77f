"""The embedded model: its corpus, its training script and the weights that ship."""
