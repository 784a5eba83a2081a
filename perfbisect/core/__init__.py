"""Values in, values out: no clock, randomness, file, process, network or git."""
