"""The server of ``perfbisect mcp``: each call of a tool is a command in a process of its own.

A process of its own has the signals, the output and the exit code of a command line, and a job that it
detaches outlives the server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

import perfbisect
from perfbisect.commands.detach import START
from perfbisect.common.text import hint, line
from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_REGRESSION,
    MachineError,
    PerfbisectError,
    UsageError,
)
from perfbisect.jobs.documents import ErrorDocument
from perfbisect.jobs.requests import STARTER_VARIABLE
from perfbisect.mcp.tools import INSTRUCTIONS, TOOLS

_VERDICTS = (EXIT_OK, EXIT_REGRESSION, EXIT_INCONCLUSIVE)
_LONGEST_NAME = 80


def serve_stdio() -> None:
    """Serve the client at the other end of standard input and output until it closes them."""
    tools = {tool.name: tool for tool in TOOLS}

    async def list_tools(context: ServerRequestContext[Any], params: Any) -> types.ListToolsResult:
        del context, params
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(read_only_hint=tool.is_reading),
                )
                for tool in TOOLS
            ]
        )

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        client = context.session.client_params
        known = client.client_info if client else None
        starter = line(f"mcp: {known.name} {known.version}" if known else "mcp: a client", _LONGEST_NAME)
        try:
            if params.name not in tools:
                raise UsageError(
                    f"no tool {params.name!r}{hint(params.name, tools)}; there are: {', '.join(tools)}",
                    where="tools/call",
                    next_step="another tool, or perfbisect -h for all commands",
                )
            words = tools[params.name].words(params.arguments or {})
            text, is_failure = await _type(words, os.environ | {STARTER_VARIABLE: starter})
        except PerfbisectError as error:
            text, is_failure = ErrorDocument.of(error).text(), True
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=json.loads(text),
            is_error=is_failure,
        )

    async def serve() -> None:
        server = Server(
            "perfbisect",
            version=perfbisect.__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
        )
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(serve)


async def _type(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, bool]:
    """The document that a command prints; True where it failed.

    Raises:
        UsageError: an argument that no program can be given.
        MachineError: it ended without a document.
    """
    try:
        process = await anyio.open_process(
            [sys.executable, "-c", START, *words], stdin=subprocess.DEVNULL, env=environment
        )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the arguments cannot be passed on: {error}", next_step="shorter arguments, without NUL"
        ) from error
    out, err = bytearray(), bytearray()

    async def collect(stream: Any, into: bytearray) -> None:
        async for part in stream:
            into.extend(part)

    async with process:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collect, process.stdout, out)
                tasks.start_soon(collect, process.stderr, err)
            code = await process.wait()
        except anyio.get_cancelled_exc_class():
            # As Ctrl-C: a job that is about to begin is ended with its processes, and leaves none behind.
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            with anyio.CancelScope(shield=True):
                await process.wait()
            raise
    text = out.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        said = err.decode("utf-8", "replace").strip().splitlines()
        raise MachineError(
            f"perfbisect {words[0]} ended with {code}: {line(said[-1]) if said else 'it printed nothing'}"
        )
    return text, code not in _VERDICTS
