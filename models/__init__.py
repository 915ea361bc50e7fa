"""Generative programs p(y, w | x), one per file."""
