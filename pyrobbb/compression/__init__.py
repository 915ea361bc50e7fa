"""Weights removed by signal-to-noise, and the smaller network that is left."""
