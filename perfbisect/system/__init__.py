"""The outside world, a module each."""
