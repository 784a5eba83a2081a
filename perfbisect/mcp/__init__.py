"""``perfbisect mcp``: commands as tools of the Model Context Protocol, for coding agents."""
