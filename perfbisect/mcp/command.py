"""``perfbisect mcp``."""

from __future__ import annotations

import sys

from perfbisect.errors import EXIT_OK, UsageError


def serve() -> int:
    """Serve a coding agent on standard input and output, by the Model Context Protocol.

    Each tool is a command, and its result the document that --json prints, short unless `full` is asked for.
    `plan` shows what would be measured, with its price; `start` begins it in the background within a budget,
    and `status` follows it. The journal of a job says which client started it. No port is opened. A client
    can do what its user could type here.

    \b
    Examples:
      perfbisect mcp
      claude mcp add perfbisect -- perfbisect mcp
    """
    try:
        from perfbisect.mcp.server import serve_stdio
    except ImportError as error:
        raise UsageError(
            f"perfbisect mcp needs the extra mcp: {error}",
            where=sys.executable,
            next_step="pip install 'perfbisect[mcp]'",
        ) from error
    serve_stdio()
    return EXIT_OK
