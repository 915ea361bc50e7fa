"""Training: the loop, checkpoints and resumption, history, progress, validation."""

from pyrobbb._support.process_group import joined

__all__ = ["joined"]
