"""Every method of inference on the same models and data: `python -m experiments.scoreboard`."""
