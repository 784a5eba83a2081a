"""The server of one attempt, or of several: started with their token, ended on every way out, its port free
afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perfbisect.cells.deploy import inherited_documents, pinned_documents, placed
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
from perfbisect.system.processes import Owned

_PORT_PATIENCE = 10.0
_LEASE_PATIENCE = 3.0
"""Seconds in which a lease command that has ended its server says so by its own end."""


@contextmanager
def running_server(
    present: Callable[[], AttemptRecord],
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
        owned = processes.spawn(
            argv, env=env, cwd=request.folder, log=record.log, token=record.token, cores=cores
        )
        try:
            started(token=record.token, pid=owned.pid, created=owned.created, port=port)
            sink(
                "launch",
                {"pid": owned.pid, "port": port, "model": endpoint.model_name, "log": str(record.log)},
            )
            yield owned
        except faults.ATTEMPT_ERRORS as error:
            present().fail(_of_lease(error, owned, lost), owned)
        finally:
            _stop(present(), owned, port, sink)
    finally:
        processes.stop_leftovers(record.token, 0, 0.0, grace=0.0)


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


def _stop(record: AttemptRecord, owned: Owned, port: int, sink: Sink) -> None:
    began = time.monotonic()
    record.phase, record.log = "stop", owned.log
    try:
        removed = processes.stop(owned, record.request.limits.stop)
        if removed:
            record.facts["shared_memory_removed"] = removed
        ports.wait_free(port, _PORT_PATIENCE if record.failure is None else 0.0)
    except (ServerError, MachineError) as error:
        record.fail(error)
    record.seconds["stop"] = time.monotonic() - began
    sink("stop", {"seconds": record.seconds["stop"], "exit_code": owned.exited()})


def find_engine(cell: Cell, change: Change, environment: Environment) -> Engine:
    """The engine of a change in its environment, for the command that starts it.

    :raises ServerError: the cell takes its deploy YAML from the change, and this one has no such file.
    """
    root = Path(environment.engine_file).parent.parent
    deploy = cell.deploy_yaml
    if deploy is not None and deploy.origin and deploy.path and not (root / deploy.path).is_file():
        raise ServerError(
            f"the deploy YAML {deploy.path}, which the cell takes from the change, is not in {change.short}",
            next_step="pin it in the cell: deploy_yaml: {at: REV, path: ...} or {text: ...}",
        )
    return Engine(version=environment.engine_version, date=change.date, root=str(root))


def check_stages(cell: Cell, slot: Slot, platform: str, *, root: str = "") -> None:
    """Refuse stages that name devices which the slot does not have.

    Numbers count within what the engine sees. Where all of a stage's lie outside that, vLLM-Omni takes them
    for numbers of the machine: the stage would run on somebody else's device. ``root``: the change's own
    tree, where it is known. A cell without a deploy YAML has the engine's own, which is not read here.

    :raises UsageError: the cell says so itself.
    :raises ServerError: the change's deploy YAML does: that of another change may fit.
    """
    if not slot.devices and not slot.env:
        return
    deploy = cell.deploy_yaml
    own = deploy is not None and deploy.origin is not None
    documents = pinned_documents(deploy)
    if own and root and deploy is not None:
        documents = inherited_documents(f"{root}/{deploy.path}", _text)
    for stage in placed(documents, cell.stage_overrides, platform):
        why = stage.beyond(len(slot.devices))
        if not why:
            continue
        message = f"cell {cell.name}: {stage.field}: {why}"
        where = f"{stage.file}:{stage.line}" if stage.line else stage.file or None
        kind = ServerError if own and stage.file else UsageError
        raise kind(message, where=where, next_step=stage.advice)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def add_serve_args(cell: Cell, more: Mapping[str, object]) -> Cell:
    """The cell as it is served on a kind of machine: with arguments that it does not set itself."""
    return cell.model_copy(update={"serve_args": {**more, **cell.serve_args}}) if more else cell


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write the texts that the server reads into its folder.

    :raises OSError: that is not possible.
    """
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
