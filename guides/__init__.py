"""Variational families q(w), one per file; Pyro's own autoguides need no file, only a YAML line."""
