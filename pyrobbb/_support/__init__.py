"""What only supports: files, signals, seeds, devices, memory, processes, checks of what is given."""
