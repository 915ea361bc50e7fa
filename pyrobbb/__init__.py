"""Bayes by Backprop (Blundell et al. 2015) as probabilistic programs in Pyro."""

__version__ = "0.1.0"
