"""What is under test: git history, releases, pins, reverts."""
