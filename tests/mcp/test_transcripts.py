"""Recorded calls of agents, made again by the SDK's client over standard input and output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, types
from mcp.client.stdio import StdioServerParameters

from perfbisect.jobs.folders import hold_folder
from tests.command_line import Outcome, fill, isolate, type_json
from tests.golden.test_golden import thawed
from tests.nightlies import make_nightlies
from tests.skill.worlds import text
from tests.transcripts.runner import Typist, parse, play

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
SERVER = "from perfbisect.cli import main; main(['mcp'])"


def finished(folder: Path) -> Mapping[str, str]:
    """A bisection that has ended."""
    thawed("bisect-found", folder / "state")
    return {}


def nights(folder: Path) -> Mapping[str, str]:
    """The stored results of nights of which one was slow."""
    made = make_nightlies(folder / "nightlies")
    type_json("track", "ingest", str(made.all), "--zone", "UTC")
    return {"REPO": str(made.repo), "CULPRIT": made.culprit}


WORLDS: Mapping[str, Callable[[Path], Mapping[str, str]]] = {
    "text": text,
    "finished": finished,
    "nights": nights,
}


def server_of() -> StdioServerParameters:
    """``perfbisect mcp`` with the environment of this process."""
    return StdioServerParameters(command=sys.executable, args=["-c", SERVER], env=dict(os.environ))


@contextmanager
def connected(name: str, version: str) -> Iterator[Typist]:
    """Call tools, each a line of its name and its arguments as JSON."""
    about = types.Implementation(name=name, version=version)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server_of(), client_info=about)) as client,
    ):

        def call(line: str, known: Mapping[str, str]) -> Outcome:
            tool, _, arguments = line.partition(" ")
            result = portal.call(client.call_tool, tool, fill(json.loads(arguments), known))
            (content,) = result.content
            assert isinstance(content, types.TextContent)
            document = result.structured_content
            assert json.loads(content.text) == document
            code = document["exit_code"] if document["schema"] == "perfbisect.error/1" else 0
            assert result.is_error is (code != 0)
            assert listening() == []
            return Outcome(code, content.text, "")

        yield call


def listening() -> list[object]:
    """The ports that the server and its commands listen on."""
    return [
        connection
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.processes] * (path.stem == "bisection"))
        for path in TRANSCRIPTS
    ],
)
def test_transcript(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    (tmp_path / "cells").mkdir()
    told = parse(path.read_text(encoding="utf-8"))
    name, version = told.about["client"].split()
    with connected(name, version) as typist:
        play(told, WORLDS[told.about["world"]](tmp_path), typist)


def test_a_cancelled_call_ends_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    job = thawed("bisect-found", tmp_path / "state")

    def commands() -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile, or is a zombie
                found += [process] if "status" in process.cmdline() else []
        return found

    async def cancel() -> None:
        async with Client(server_of(), client_info=types.Implementation(name="x", version="1")) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "status", {"job_id": job.id, "wait": True})
                while not commands():
                    await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
            while commands():
                await anyio.sleep(0.05)

    with hold_folder(job.path, "job", "wait"):
        anyio.run(cancel)
