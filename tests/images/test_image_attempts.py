"""Servers in containers: owned, measured and ended like any process tree. Real containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfbisect.environments.base import Environment
from perfbisect.measure.executor import PhaseLimits
from perfbisect.model.attempt import Attempt
from perfbisect.system import ports, processes
from tests.fakes.history import ENGINE
from tests.images.conftest import BAD, GOOD, NAME, TOOL, ImageWorld, await_no_container, containers, tool
from tests.measure.pretend import Watch, environment
from tests.measure.pretend import attempt as make_attempt

pytestmark = [pytest.mark.images, pytest.mark.timeout(600)]

CELL = Path(__file__).parents[2] / "pretend" / "cells" / "pretend.yaml"


def attempt(folder: Path, server: Environment, client: Environment, watch: Watch | None = None) -> Attempt:
    """One attempt; a container may take long to start on a busy machine."""
    limits = PhaseLimits(build=300.0, ready=300.0, first_request=300.0, bench=300.0, stop=2.0)
    return make_attempt(folder, server, client, watch=watch, limits=limits)


@pytest.fixture
def server(images: ImageWorld, tmp_path: Path) -> Environment:
    return images.environment(tmp_path, GOOD)


@pytest.fixture
def client(tmp_path: Path) -> Environment:
    """Pinned, outside any image."""
    return environment(tmp_path, "client")


def test_a_server_in_its_image(server: Environment, client: Environment, tmp_path: Path) -> None:
    """Its container has the attempt's token; its processes hold the port, on the loopback alone."""
    found: list[str] = []
    listeners: list[ports.Listener] = []
    inside: list[tuple[int, str]] = []

    def look(watch: Watch) -> None:
        token, pid, created = (watch.launched[name] for name in ("token", "pid", "created"))
        found.extend(tool("ps", "--quiet", "--filter", f"label=perfbisect.token={token}").split())
        listeners.extend(ports.listeners(watch.launched["port"]))
        for process in processes.tree(token, pid, created):
            inside.append((process.pid, str(Path(f"/proc/{process.pid}/ns/pid").readlink())))

    made = attempt(tmp_path, server, client, watch=Watch(at={"ready": look}))
    assert made.failure is None, made.failure
    assert made.runs[0].values["tpot:median"] > 0
    assert len(found) == 1
    outside = str(Path("/proc/self/ns/pid").readlink())
    assert {name == outside for _, name in inside} == {True, False}, "the tool, and the server's processes"
    holders = {holder.pid for listener in listeners for holder in listener.holders}
    assert holders and holders <= {pid for pid, name in inside if name != outside}
    assert {listener.address for listener in listeners} == {"127.0.0.1"}
    assert containers() == []


def test_a_server_that_ends_by_itself(server: Environment, client: Environment, tmp_path: Path) -> None:
    """Its exit code and its log come back; the failure is the change's."""
    faulty = replace(server, env={**server.env, "PRETEND_FAULT": "import_error"})
    made = attempt(tmp_path, faulty, client)
    assert made.failure is not None
    assert (made.failure.fault, made.failure.code) == ("change", "engine_import_failed")
    assert "ended with exit code 1" in made.failure.reason
    assert "pretend fault import_error" in (tmp_path / "attempt" / "server.log").read_text()


@pytest.mark.parametrize("fault", ["ignore_term", "orphans"])
def test_a_server_that_does_not_end(
    fault: str, server: Environment, client: Environment, tmp_path: Path
) -> None:
    """Killed after the grace period; the container is removed although its front end is dead too."""
    deaf = replace(server, env={**server.env, "PRETEND_FAULT": fault})
    made = attempt(tmp_path, deaf, client)
    assert made.failure is None, made.failure
    await_no_container()


def test_a_tool_that_fails(server: Environment, client: Environment, tmp_path: Path) -> None:
    """That the container did not start is no change's failure."""
    settings = server.folder / "container.json"
    document = json.loads(settings.read_text())
    settings.write_text(json.dumps(document | {"image": "0" * 64}))
    made = attempt(tmp_path, server, client)
    assert made.failure is not None
    assert (made.failure.fault, made.failure.code) == ("machine", "container_failed"), made.failure


def test_a_client_in_an_image_of_its_own(images: ImageWorld, server: Environment, tmp_path: Path) -> None:
    made = attempt(tmp_path, server, images.environment(tmp_path, BAD))
    assert made.failure is None, made.failure
    assert made.runs[0].values["tpot:median"] > 0


class Command:
    """The real command on the images, with a state of its own."""

    def __init__(self, images: ImageWorld, folder: Path) -> None:
        self.images, self.folder = images, folder
        places = {f"PERFBISECT_{name}": str(folder / name.lower()) for name in ("STATE", "CACHE", "LOCKS")}
        self.env = os.environ | places | {"PERFBISECT_BACKOFF": "0.1,0.1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from perfbisect.cli import main; main()", *arguments, "--json"]
        return subprocess.Popen(
            command, env=self.env, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def measure(self, verb: str, *changes: str) -> subprocess.Popen[str]:
        return self.start(
            *(verb, str(CELL), "--repo", str(self.images.history.path), *changes),
            *("--env", f"image:{NAME}:{{sha}},tool={TOOL}"),
            *("--client", f"existing:{sys.executable},path={ENGINE}"),
        )

    def await_server(self, process: subprocess.Popen[str], but: str = "") -> str:
        """The container of a server, other than ``but``."""
        while True:
            row = ("--no-trunc", "--format", "{{.ID}} {{.Command}}")
            rows = tool("ps", *row, "--filter", "label=perfbisect.token").splitlines()
            servers = {line.split()[0] for line in rows if "serve" in line.replace('"', " ").split()} - {but}
            if servers:
                return servers.pop()
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)


@pytest.fixture
def command(images: ImageWorld, tmp_path: Path) -> Command:
    return Command(images, tmp_path)


def test_kill_9_and_resume(command: Command) -> None:
    """A killed job leaves its server; the resumed job ends it and measures again."""
    process = command.measure("run", "--at", command.images.history.good)
    killed = command.await_server(process)
    process.kill()
    process.communicate()
    assert killed[:12] in containers()
    (job,) = (command.folder / "state" / "jobs").iterdir()
    process = command.start("resume", job.name)
    command.await_server(process, but=killed)
    assert killed[:12] not in containers()
    _, told = process.communicate()
    assert process.returncode == 0, told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_container(number: signal.Signals, command: Command) -> None:
    process = command.measure("run", "--at", command.images.history.good)
    command.await_server(process)
    process.send_signal(number)
    _, told = process.communicate()
    assert process.returncode == 130, told
    assert containers() == []


def test_a_bisection(command: Command) -> None:
    """The commit without an image is left out; the slow one is named."""
    history = command.images.history
    process = command.measure("bisect", "--good", history.good, "--bad", history.bad)
    output, told = process.communicate()
    assert process.returncode == 3, told
    assert json.loads(output)["culprit"]["id"] == history.culprit
