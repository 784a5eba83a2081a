"""The process that speaks to Ray for a driver: ``python -m perfbisect.fleet.ray_relay ADDRESS SOCKET``.

Ray ends a process that loses its cluster and takes over its signals, so it has one of its own. It ends with
its standard input. The actors that run commands are detached and have names: all drivers of a cluster share
one on a node, and it ends once nobody has asked for a while. Agents, which have sessions of their own, live
on. perfbisect need not be on the nodes: the actor's class is sent by value, since it is of the main module,
and it needs only Ray and Python's own modules.

A caller connects to the socket, and sends ``("nodes",)`` or ``("run", node, argv, timeout)`` and then the
command's standard input in pieces, up to an empty one. The answer is ``("nodes", rows)``,
``("ended", code, output, errors)`` or ``("silent", why)``.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_REACHED_S = 45.0
"""For what an actor does at once, and for its start."""

_AT_ONCE = 64
"""Commands on a node."""

_IDLE_S = 30.0
"""Seconds without a command after which an actor ends: a driver that waits for a bundle asks more often."""


class PerfbisectCommands:
    """Runs commands in the user's home folder; the actor on a node."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Any, Any, Any]] = {}
        self._asked = time.monotonic()
        threading.Thread(target=self._end_when_idle, daemon=True).start()
        # Ray sets variables of its workers, such as CUDA_VISIBLE_DEVICES: those of its daemon are the
        # machine's, but for its allocator. And a server that uses Ray must not join this cluster.
        source, parent = dict(os.environ), Path(f"/proc/{os.getppid()}")
        try:
            if b"raylet" in (parent / "cmdline").read_bytes().split(b"\0")[0]:
                rows = os.fsdecode((parent / "environ").read_bytes()).split("\0")
                source = dict(row.split("=", 1) for row in rows if "=" in row)
        except OSError:
            pass
        preloaded = source.pop("LD_PRELOAD", "").replace(":", " ").split()
        if own := [path for path in preloaded if "/ray/core/" not in path]:
            source["LD_PRELOAD"] = " ".join(own)
        self._environment = {name: source[name] for name in source if not name.startswith("RAY_")}

    def _end_when_idle(self) -> None:
        while self._running or time.monotonic() - self._asked < _IDLE_S:
            time.sleep(1.0)
        ray.kill(ray.get_runtime_context().current_actor)

    def ready(self) -> None:
        """Answer: the actor lives, and a command follows."""
        self._asked = time.monotonic()

    def start(self, key: str, argv: list[str]) -> str:
        """Start a command; returns why it cannot be started."""
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                cwd=Path.home(),
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            return f"{argv[0]}: {error.strerror or error}"
        assert process.stdout is not None and process.stderr is not None
        # Both streams are read at once: a full pipe would stop the command.
        pool = ThreadPoolExecutor(2)
        self._running[key] = (process, pool.submit(process.stdout.read), pool.submit(process.stderr.read))
        pool.shutdown(wait=False)
        return ""

    def write(self, key: str, data: bytes) -> None:
        """Give a command more of its standard input; one that has ended takes no more."""
        process = self._running[key][0]
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(data)
            process.stdin.flush()

    def end(self, key: str, timeout: float) -> tuple[int, bytes, bytes] | None:
        """Wait for a command's end; None if it was killed after ``timeout`` seconds."""
        process, output, errors = self._running[key]
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            code = process.wait(timeout)
            # A daemon of the command may hold its output.
            answer = code, output.result(_REACHED_S), errors.result(_REACHED_S)[-4000:]
        except (subprocess.TimeoutExpired, concurrent.futures.TimeoutError):
            self.kill(key)
            return None
        self._asked = time.monotonic()  # the answer is on its way for a while
        del self._running[key]
        return answer

    def kill(self, key: str) -> None:
        """Kill a command and the processes of its session."""
        process = self._running.pop(key)[0]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class _Relay:
    """Answers the requests of a driver; an actor on each node that is asked for runs the commands."""

    def __init__(self) -> None:
        self._class = ray.remote(PerfbisectCommands)
        # An actor of another version of perfbisect is not shared.
        self._name = f"perfbisect-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}"
        self._actors: dict[str, Any] = {}
        self._starting: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def listen(self, socket: str) -> None:
        with Listener(socket, "AF_UNIX", backlog=_AT_ONCE) as listener:
            while True:
                threading.Thread(target=self._serve, args=(listener.accept(),), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            try:
                kind, *words = connection.recv()
                if kind == "nodes":
                    rows = [
                        (row["NodeID"], row.get("NodeName") or row["NodeManagerAddress"], bool(row["Alive"]))
                        for row in ray.nodes()
                    ]
                    connection.send(("nodes", rows))
                else:
                    connection.send(self._run(connection, *words))
            except (EOFError, OSError):
                pass  # the caller is gone

    def _run(self, given: Connection, node: str, argv: Sequence[str], timeout: float) -> tuple[Any, ...]:
        key, actor = uuid.uuid4().hex, None
        is_read = False
        try:
            actor = self._actor(node)
            why = ray.get(actor.start.remote(key, list(argv)), timeout=_REACHED_S)
            while data := given.recv_bytes():
                if not why:
                    ray.get(actor.write.remote(key, data), timeout=timeout)
            is_read = True
            if why:
                return "ended", 127, b"", why.encode()
            ended = ray.get(actor.end.remote(key, timeout), timeout=timeout + _REACHED_S)
            return ("silent", f"{argv[0]} took over {timeout:.0f} s") if ended is None else ("ended", *ended)
        except ray.exceptions.RayError as error:
            if actor is not None:
                actor.kill.remote(key)
            while not is_read and given.recv_bytes():
                """An answer is read once all has been sent."""
            return "silent", str(error).strip().splitlines()[0]
        except (EOFError, OSError):  # the caller is gone
            if actor is not None:
                actor.kill.remote(key)
            raise

    def _actor(self, node: str) -> Any:
        """The actor on a node, a new one if it is gone."""
        with self._starting[node]:
            if node in self._actors:
                try:
                    ray.get(self._actors[node].ready.remote(), timeout=_REACHED_S)
                    return self._actors[node]
                except ray.exceptions.RayActorError:
                    del self._actors[node]
            # This node or none: a soft affinity would run the command on another machine.
            pinned = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
            actor = self._class.options(
                name=f"{self._name}-{node}",
                lifetime="detached",
                get_if_exists=True,
                # It takes nothing of the cluster: what it starts leases devices by itself.
                num_cpus=0,
                max_concurrency=_AT_ONCE,
                scheduling_strategy=pinned,
            ).remote()
            ray.get(actor.ready.remote(), timeout=_REACHED_S)
            self._actors[node] = actor
            return actor


def main(address: str, socket: str) -> None:
    ray.init(
        address=address,
        namespace="perfbisect",
        log_to_driver=False,
        configure_logging=False,
        ignore_reinit_error=True,
    )
    threading.Thread(target=_Relay().listen, args=(socket,), daemon=True).start()
    sys.stdin.buffer.read()
    ray.shutdown()
    shutil.rmtree(Path(socket).parent, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
