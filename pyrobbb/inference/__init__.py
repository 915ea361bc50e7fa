"""Inference methods other than stochastic variational inference, one per file."""
