"""Supporting code: files, signals, seeds, devices, memory, processes and checks of arguments."""
