"""The nodes of a Ray cluster: ``--fleet ray:ADDRESS[,folder=..,command=..,profile=..]``.

Ray only runs commands, as ssh does: an agent is started, seen and ended by the same scripts, in a session of
its own that outlives Ray's worker, the driver and Ray's daemons.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client
from multiprocessing.connection import Connection as Channel
from pathlib import Path
from typing import IO, Any

from perfbisect.fleet.bundle import UnreachableError
from perfbisect.fleet.connection import TIMEOUT_S, Answer, Connection
from perfbisect.fleet.hosts import FleetHost, HostSettings
from perfbisect.system.logs import excerpt, excerpt_lines

_CONNECTED_S = 90.0
_MARGIN_S = 120.0
"""Beyond a command's own time: for the start of a node's actor, and for Ray's own limits."""

_PIECE = 8 << 20


class RayCluster:
    """A Ray cluster, reached through a process of its own: :mod:`perfbisect.fleet.ray_relay`."""

    def __init__(self, address: str, settings: HostSettings) -> None:
        self.address, self.settings = address, settings
        self._known: Mapping[str, str] = {}
        self._lock = threading.Lock()
        self._relay: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._end: weakref.finalize[[], RayCluster] | None = None

    def hosts(self) -> Sequence[FleetHost]:
        """The living nodes, and those that have been since this object was made.

        A node that comes back has another id and the same name. Nodes with one name, such as those of a test
        on one host, have the beginning of their id in it.

        Raises:
            UnreachableError: the cluster does not answer.
        """
        rows = self._ask(("nodes",), io.BytesIO(), 0.0)[0]
        living = sorted((node, name) for node, name, is_alive in rows if is_alive)
        counts = Counter(name for _, name in living)
        ids = {name if counts[name] == 1 else f"{name}-{node[:8]}": node for node, name in living}
        # A bundle on a node that left must still be found by its name, as not answering.
        self._known = dict.fromkeys(self._known, "") | ids
        return tuple(
            FleetHost(name, RayConnection(self, name, node), self.settings)
            for name, node in self._known.items()
        )

    def run(self, node: str, argv: Sequence[str], given: IO[bytes], timeout: float) -> Answer:
        """Run a command on the node with an id, in the user's home folder.

        Raises:
            UnreachableError: the node or the cluster does not answer, or the command not in time.
        """
        code, output, errors = self._ask(("run", node, list(argv), timeout), given, timeout)
        return Answer(code, output, excerpt_lines(errors.decode("utf-8", "replace")))

    def _ask(self, request: tuple[Any, ...], given: IO[bytes], timeout: float) -> list[Any]:
        answer: list[Any]
        with self._connect() as channel:
            try:
                channel.send(request)
                # Pieces: an environment of gigabytes is never in memory as a whole.
                if request[0] == "run":
                    while piece := given.read(_PIECE):
                        channel.send_bytes(piece)
                    channel.send_bytes(b"")
                if not channel.poll(timeout + _MARGIN_S):
                    raise self._silence("it takes too long")
                kind, *answer = channel.recv()
            except (OSError, EOFError):
                raise self._silence(self._last_words()) from None
        if kind == "silent":
            raise self._silence(excerpt(answer[0]))
        return answer

    def _silence(self, why: str) -> UnreachableError:
        return UnreachableError(f"Ray at {self.address} does not answer: {why or 'the connection was lost'}")

    def _connect(self) -> Channel:
        with self._lock:
            if self._relay is None or self._relay.poll() is not None:
                self._start()
            relay, folder = self._relay, self._folder
            assert relay is not None and folder is not None
            deadline = time.monotonic() + _CONNECTED_S
            while True:
                with suppress(FileNotFoundError, ConnectionRefusedError):
                    return Client(str(folder / "socket"), "AF_UNIX")
                if relay.poll() is not None:
                    raise self._silence(self._last_words())
                if time.monotonic() > deadline:
                    relay.kill()
                    raise self._silence(f"no connection within {_CONNECTED_S:.0f} s")
                time.sleep(0.05)

    def _start(self) -> None:
        """Start the relay, in a session of its own: Ctrl-C is the driver's, which then ends its bundles."""
        if self._end is not None:
            self._end()
        # Of the relay's socket: its path must be short, and nobody else may use it.
        folder = Path(tempfile.mkdtemp(prefix="pb-ray-"))
        with (folder / "log").open("wb") as log:
            relay = subprocess.Popen(
                [sys.executable, "-m", "perfbisect.fleet.ray_relay", self.address, str(folder / "socket")],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def end() -> None:
            assert relay.stdin is not None
            with suppress(OSError):
                relay.stdin.close()
            try:
                relay.wait(10)
            except subprocess.TimeoutExpired:
                relay.kill()
                relay.wait()
            shutil.rmtree(folder, ignore_errors=True)

        self._relay, self._folder, self._end = relay, folder, weakref.finalize(self, end)

    def _last_words(self) -> str:
        """What a relay that ended said last."""
        assert self._folder is not None
        with suppress(OSError):
            lines = (self._folder / "log").read_text("utf-8", "replace").strip().splitlines()
            return excerpt(lines[-1], 500) if lines else ""
        return ""


@dataclass(frozen=True)
class RayConnection(Connection):
    """A node of a Ray cluster. ``node``: its id, empty: it is not there now."""

    cluster: RayCluster
    name: str
    node: str

    def run(
        self,
        argv: Sequence[str],
        given: bytes | IO[bytes] = b"",
        *,
        into: IO[bytes] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Answer:
        if not self.node:
            raise UnreachableError(f"{self.name} does not answer: it is not in the Ray cluster now")
        stream = io.BytesIO(given) if isinstance(given, bytes) else given
        answer = self.cluster.run(self.node, argv, stream, timeout)
        if into is None:
            return answer
        into.write(answer.output)
        return replace(answer, output=b"")
