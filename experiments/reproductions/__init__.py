"""Published reproductions by others, and the faults in them."""
