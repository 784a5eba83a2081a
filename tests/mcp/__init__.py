"""``perfbisect mcp``: its tools, and recorded calls of agents."""
