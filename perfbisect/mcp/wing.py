"""``mcp`` as a wing."""

from perfbisect.commands.wings import SET_UP, Wing

WING = Wing(commands=(("mcp", SET_UP, "Serve coding agents: commands as tools (MCP).", "mcp.command:serve"),))
