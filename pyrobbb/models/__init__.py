"""Architectures, one per file: each makes the model p(y, w | x) of a network."""
