"""Lifetime of a server, and the engine's facts that its command needs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perfbisect.cells.deploy import deploy_documents, misplaced_stages
from perfbisect.environments.base import Environment
from perfbisect.errors import MachineError, PerfbisectError, ServerError, UsageError
from perfbisect.machine.slots import Slot
from perfbisect.measure import faults
from perfbisect.measure.executor import Sink, Started
from perfbisect.measure.record import AttemptRecord
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change
from perfbisect.serving.families import Endpoint, Engine
from perfbisect.system import ports, processes
from perfbisect.system.processes import OwnedProcess

_PORT_WAIT_S = 10.0
_LEASE_WAIT_S = 3.0
"""For a lease command to exit after it ended its server."""


@contextmanager
def running_server(
    record: AttemptRecord,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    endpoint: Endpoint,
    *,
    started: Started,
    sink: Sink,
    lost: tuple[int, ...] = (),
) -> Iterator[OwnedProcess]:
    """Start a server and stop it on exit; a failure inside becomes the record's.

    ``lost``: exit codes of a lease command that lost the machine.
    """
    request, port = record.request, endpoint.port
    cores = request.slot.server_cores if request.slot else ()
    try:
        owned = processes.spawn(
            argv, env=env, cwd=request.folder, log=record.log, token=record.token, cores=cores
        )
        try:
            started(token=record.token, pid=owned.pid, created=owned.created, port=port)
            facts = {"pid": owned.pid, "port": port, "model": endpoint.model_name, "log": str(record.log)}
            sink("launch", facts)
            yield owned
        except faults.ATTEMPT_ERRORS as error:
            # The lease command ends its server first, and itself with the telling code a moment later.
            end = time.monotonic() + (_LEASE_WAIT_S if lost else 0.0)
            while (code := owned.exited()) is None and time.monotonic() < end:
                time.sleep(0.05)
            failure: Exception = error
            if code in lost:
                message = error.message if isinstance(error, PerfbisectError) else str(error)
                problem = f"the lease is lost: its command ended with {code}: {message}"
                failure = MachineError(problem, where=owned.log, code="lease_lost")
            record.fail(failure, owned)
        finally:
            _stop(record, owned, port, sink)
    finally:
        # A start that failed halfway may have left processes: they are found by the token.
        processes.stop_leftovers(record.token, 0, 0.0, grace=0.0)


def _stop(record: AttemptRecord, owned: OwnedProcess, port: int, sink: Sink) -> None:
    with record.timed("stop", owned.log):
        try:
            removed = processes.stop(owned, record.request.limits.stop)
            if removed:
                record.facts["shared_memory_removed"] = removed
            # After a failure there is no wait: the next attempt has another port.
            ports.wait_free(port, _PORT_WAIT_S if record.failure is None else 0.0)
        except (ServerError, MachineError) as error:
            record.fail(error)
    sink("stop", {"seconds": record.seconds["stop"], "exit_code": owned.exited()})


def find_engine(cell: Cell, change: Change, environment: Environment) -> Engine:
    """The engine of a change; ServerError if the change lacks the cell's deploy YAML."""
    root = Path(environment.engine_file).parent.parent
    deploy = cell.deploy_yaml
    if deploy is not None and deploy.origin and deploy.path and not (root / deploy.path).is_file():
        raise ServerError(
            f"the cell's deploy YAML {deploy.path} does not exist in {change.short}",
            next_step="pin it in the cell: deploy_yaml: {at: REV, path: ...} or {text: ...}",
        )
    return Engine(version=environment.engine_version, date=change.date, root=str(root))


def check_stages(cell: Cell, slot: Slot, platform: str, *, root: str = "") -> None:
    """Check that all stages use devices of the slot.

    Numbers count visible devices. If all numbers of a stage are outside that range, vLLM-Omni takes them as
    numbers of the machine, so the stage would run on a foreign device. ``root``: the change's tree, if known.
    The engine's default deploy YAML is not read.

    Raises:
        UsageError: the cell names other devices.
        ServerError: the change's deploy YAML names other devices.
    """
    # If all numbers of a stage are outside of what is visible, vLLM-Omni takes them as the machine's: a
    # masked worker then runs on a foreign device.
    documents, is_own = (
        deploy_documents(cell.deploy_yaml, root),
        bool(cell.deploy_yaml and cell.deploy_yaml.origin),
    )
    # A machine with devices hides them from a cell that reserves none.
    for stage, reason in misplaced_stages(
        documents, cell.stage_overrides, len(slot.devices), may_be_cpu=not slot.env, platform=platform
    ):
        kind = ServerError if is_own and stage.file else UsageError
        raise kind(
            f"cell {cell.name}: {stage.field}: {reason}",
            where=f"{stage.file}:{stage.line}" if stage.line else stage.file or None,
            next_step=stage.advice,
        )


def add_serve_args(cell: Cell, more: Mapping[str, object]) -> Cell:
    """Add the machine's serve arguments, unless the cell sets them."""
    return cell.model_copy(update={"serve_args": {**more, **cell.serve_args}}) if more else cell
