"""Training: the loop, what a checkpoint holds and resumes, history, progress, validation."""
