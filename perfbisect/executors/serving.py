"""The server of one attempt, or of several: started with their token, ended on every way out, its port free
afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from perfbisect.errors import MachineError, PerfbisectError, ServerError
from perfbisect.executors import Sink, Started, faults
from perfbisect.executors.record import Record
from perfbisect.families import Endpoint
from perfbisect.system import ports, proc
from perfbisect.system.proc import Owned

_PORT_PATIENCE = 10.0
_LEASE_PATIENCE = 3.0
"""Seconds in which a lease command that has ended its server says so by its own end."""


@contextmanager
def serving(
    present: Callable[[], Record],
    argv: tuple[str, ...],
    env: Mapping[str, str],
    endpoint: Endpoint,
    *,
    started: Started,
    sink: Sink,
    lost: tuple[int, ...] = (),
) -> Iterator[Owned]:
    """The server's processes. A failure inside becomes the present record's, once; nothing is raised for it.

    ``present``: the record of the attempt that is under way, of those that the server serves in turn.
    ``lost``: exit codes by which a command in front of the server's says that it has lost the machine.
    """
    record, port = present(), endpoint.port
    request = record.request
    cores = request.slot.server_cores if request.slot else ()
    try:
        owned = proc.spawn(argv, env=env, cwd=request.folder, log=record.log, token=record.token, cores=cores)
        try:
            started(token=record.token, pid=owned.pid, created=owned.created, port=port)
            sink(
                "launch",
                {"pid": owned.pid, "port": port, "model": endpoint.model_name, "log": str(record.log)},
            )
            yield owned
        except faults.RAISED as error:
            present().fail(_of_lease(error, owned, lost), owned)
        finally:
            _stop(present(), owned, port, sink)
    finally:
        proc.stop_leftovers(record.token, 0, 0.0, grace=0.0)


def _of_lease(error: Exception, owned: Owned, lost: tuple[int, ...]) -> Exception:
    """The failure, or that the lease is lost where that is why."""
    end = time.monotonic() + (_LEASE_PATIENCE if lost else 0.0)
    while (code := owned.exited()) is None and time.monotonic() < end:
        time.sleep(0.05)
    if code is None or code not in lost:
        return error
    said = error.message if isinstance(error, PerfbisectError) else str(error)
    return MachineError(
        f"the lease is lost: its command ended with {code}: {said}", where=owned.log, code="lease_lost"
    )


def _stop(record: Record, owned: Owned, port: int, sink: Sink) -> None:
    began = time.monotonic()
    record.phase, record.log = "stop", owned.log
    try:
        removed = proc.stop(owned, record.request.limits.stop)
        if removed:
            record.facts["shared_memory_removed"] = removed
        ports.wait_free(port, _PORT_PATIENCE if record.failure is None else 0.0)
    except (ServerError, MachineError) as error:
        record.fail(error)
    record.seconds["stop"] = time.monotonic() - began
    sink("stop", {"seconds": record.seconds["stop"], "exit_code": owned.exited()})
