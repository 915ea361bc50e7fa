"""Training: the loop, checkpoints and resumption, history, progress, validation."""
