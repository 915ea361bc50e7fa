"""How fast: timings that print ratios taken in one run."""
