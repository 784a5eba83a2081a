"""The skill for agents: what it names exists, and its requests end in the right verdicts."""
