"""The engine of experiments: what a kind consists of, and the loop that makes its launches."""
