"""The worked examples of the Harvard tutorial."""
