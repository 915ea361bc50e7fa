"""Posteriors that are not found by stochastic variational inference, one method per file."""
