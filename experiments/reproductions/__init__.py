"""What others have published of their own reproductions, and the faults in them."""
