"""The composition root: YAML declarations and the commands that run them."""
