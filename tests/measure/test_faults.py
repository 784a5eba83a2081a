"""The table of whose a failure is: every row is reached, and what is read in real logs falls into its row."""

from __future__ import annotations

import errno
import re
from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from perfbisect.errors import BuildError, ClientError, FaultCode, MachineError, PerfbisectError, ServerError
from perfbisect.machine import profile
from perfbisect.measure.faults import (
    FAULT_TABLE,
    BlamedError,
    DiscardedRunError,
    FaultClassifier,
    is_own_error,
)
from perfbisect.model.attempt import Fault, Phase
from perfbisect.system import ports
from perfbisect.system.processes import signal_code

NO_OOM = 10**9
KILLED = (
    "(APIServer pid=1) WARNING 11-21 12:59:11 [core_client.py:817] [shutdown] MPClient: engine core exited "
    "unexpectedly; starting cleanup\n"
    "(APIServer pid=1) ERROR 11-21 12:59:12 [vllm_error.py:54] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
    "INFO:     Application shutdown complete."
)
WORKER = (
    "(EngineCore pid=1461) ERROR 11-21 13:00:19 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
    "unexpectedly (exit code: {}), shutting down executor.\n"
    "(EngineCore pid=1461) ERROR 11-21 13:00:19 [core.py:1512] RuntimeError: Executor failed."
)
TRITON = "".join(
    f"(EngineCore pid=1461) ERROR 11-21 13:00:19 [core.py:1512] {text}\n"
    for text in (
        "Traceback (most recent call last):",
        '  File "/env/site-packages/triton/compiler/compiler.py", line 422, in _init_handles',
        "    raise_(OutOfResources(self.metadata.shared, max_shared, 'shared memory'))",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840",
    )
)
WARNED = (
    "(APIServer pid=1) WARNING 11-21 12:58:32 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.\n"
)
ENDED = ServerError("the server ended with exit code 0 during the run")
FAILED = ServerError("the server ended with exit code 1 before it was ready")
FREE = "ValueError: Free memory on device cuda:0 (9.1/79.1 GiB) on startup is less than desired GPU memory "


def caused(error: PerfbisectError, cause: OSError) -> PerfbisectError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, log, fault, means",
    [
        (ENDED, KILLED, "machine", "vanished without a word"),
        (ENDED, WORKER.format("None"), "machine", "vanished without a word"),
        (ENDED, WORKER.format("-9"), "machine", "ended from outside"),
        (ENDED, WORKER.format("-11"), "change", "crashed"),
        (ENDED, WORKER.format("1"), "change", "the server failed"),
        (ENDED, "!!!!!!! Segfault encountered !!!!!!!\n" + KILLED, "change", "crashed"),
        (ENDED, "Fatal Python error: Aborted\n" + KILLED, "change", "crashed"),
        (ENDED, "AssertionError: shape\n" + KILLED, "change", "the server failed"),
        (ENDED, TRITON + KILLED, "change", "the server failed"),
        (ENDED, TRITON.replace("ERROR", "WARNING") + KILLED, "machine", "vanished without a word"),
        (ENDED, "INFO 1 [x.py] [shutdown] API server: shutdown triggered\n", "machine", "told to end"),
        (
            FAILED,
            "Engine core initialization failed. Failed core proc(s): {'EngineCore_0': -9}",
            "machine",
            "",
        ),
        (FAILED, "Engine core initialization failed. Failed core proc(s): {'EngineCore_0': 1}", "change", ""),
        (FAILED, WARNED, "change", "the server failed"),
        (FAILED, FREE + "utilization", "machine", "another process holds"),
        (FAILED, "torch.OutOfMemoryError: CUDA out of memory. Tried", "change", "out of device memory"),
        (FAILED, "ValueError: Model architectures ['X'] are not supported for now.", "change", "this model"),
        (FAILED, "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url", "machine", "hub"),
        (FAILED, "CUDA error: uncorrectable ECC error encountered", "machine", "device or its driver"),
        (ServerError("?", code=signal_code(15)), "", "machine", "from outside"),
        (ServerError("?", code=signal_code(6)), "", "change", "crashed"),
        (ServerError("?", code="server_hung"), "", "change", "hung"),
        (ServerError("?", code="no_output"), "", "change", "answers nothing"),
        (ServerError("?", output="CUDA out of memory"), "", "change", "out of device memory"),
        (ClientError("?", code=signal_code(11)), "", "client", "still answers"),
        (ClientError("?", code=signal_code(9)), "", "machine", "from outside"),
        (ClientError("?"), "bench serve: error: x", "client", "arguments"),
        (ClientError("?", output="FileNotFoundError: a.json"), "", "client", "dataset"),
        (ClientError("?", code="client_hung"), "", "client", "client hung"),
        (ClientError("?", code="client_hung"), "OSError: [Errno 28] x", "machine", "disk is full"),
        (BuildError("?"), "torch.OutOfMemoryError", "change", "not built"),
        (BuildError("?", output="503 Server Error: Service Unavailable"), "", "machine", "hub"),
        (MachineError("?", code="lease_lost"), "", "machine", "lease"),
        (MachineError("?", output="torch.OutOfMemoryError"), "", "machine", "machine failed"),
        (OSError(errno.ENOSPC, "?"), "", "machine", "disk is full"),
        (caused(MachineError("?"), OSError(errno.EMFILE, "?")), "", "machine", "file descriptor"),
        (DiscardedRunError("?"), "", "machine", "over the limit"),
        (ports.SharedPortError("?", code="port_taken"), "", "machine", "a port is taken"),
    ],
)
def test_whose_it_is(error: Exception, log: str, fault: Fault, means: str) -> None:
    row = FaultClassifier(NO_OOM).row(error, "bench", log)
    assert (row.fault, means in row.means) == (fault, True), row


def test_memory_that_sufficed_before_is_the_machines() -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert FaultClassifier(NO_OOM, measured_before=True).row(FAILED, "launch", said).fault == "machine"
    assert FaultClassifier(NO_OOM, measured_before=False).row(FAILED, "launch", said).fault == "change"


def test_oom_killer_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "oom_kills", lambda: 4)
    assert FaultClassifier(3).row(FAILED, "launch").means.startswith("the kernel ended a process")
    assert FaultClassifier(4).row(FAILED, "launch").fault == "change"


@pytest.mark.parametrize(
    "error, own",
    [
        (ServerError("x", output="AssertionError: no such layout", code="server_failed"), True),
        (ServerError("x", output="no error is named", code="server_failed"), False),
        (ServerError("x", output="torch.OutOfMemoryError: CUDA out of memory", code="server_failed"), False),
        (ServerError("x", output="TimeoutError: no heartbeat", code="server_failed"), False),
        (ServerError("x", output="AssertionError: no such layout", code="server_hung"), False),
        (ServerError("x", output="AssertionError: no such layout"), False),
        (MachineError("x", output="AssertionError: no such layout"), False),
    ],
)
def test_errors_that_other_work_does_not_explain(error: Exception, own: bool) -> None:
    assert is_own_error(error) == own


@pytest.mark.parametrize("phase", ["launch", "stop"])
def test_what_cannot_be_ended_is_no_change(phase: Phase) -> None:
    assert FaultClassifier(NO_OOM).row(FAILED, phase).fault == ("machine" if phase == "stop" else "change")


PAGE = [
    [cell.strip().strip("`") for cell in line.strip("|").split(" | ")]
    for line in (Path(__file__).parents[2] / "docs" / "errors.md").read_text().splitlines()
    if line.startswith("| `") and line.count(" | ") == 4
]
"""Rows of the page: code, meaning, fault, what to do, example."""


def test_page_shows_the_table_with_an_example_of_each_pattern() -> None:
    assert [row[:3] for row in PAGE] == [[row.code, row.means, row.fault] for row in FAULT_TABLE]
    for row, (*_, example) in zip(FAULT_TABLE, PAGE, strict=True):
        assert re.search(row.pattern, example), row.means


TEMPTING = "; ".join(row[-1] for row in PAGE) + "; void: x; the lease is lost; ended by signal 9"
CODES = set(get_args(FaultCode))
KINDS = (BuildError, ServerError, ClientError, MachineError, ports.SharedPortError)


@pytest.mark.parametrize("phase", ["launch", "stop"])
@pytest.mark.parametrize("kind, code", list(product(KINDS, [None, *get_args(FaultCode)])))
def test_our_message_decides_nothing(
    kind: type[PerfbisectError], code: FaultCode | None, phase: Phase
) -> None:
    """Each error class with each code: the message "x" has the row of one that names every cause."""
    plain, tempting = (FaultClassifier(NO_OOM).row(kind(text, code=code), phase) for text in ("x", TEMPTING))
    assert plain is tempting


def test_code_reaches_its_row_or_one_of_the_part_that_failed() -> None:
    reached = {
        FaultClassifier(NO_OOM).row(kind("x", code=code), "launch").code
        for kind, code in product(KINDS, CODES)
    }
    assert reached == CODES == {row.code for row in FAULT_TABLE}


def test_blamed_error_keeps_its_row() -> None:
    judge = FaultClassifier(NO_OOM)
    hung = ServerError(TEMPTING, code="server_hung")
    blamed = BlamedError(hung, judge.row(hung, "bench"), "x")
    for phase in ("bench", "stop"):
        assert judge.row(blamed, phase, TEMPTING).code == "server_hung"  # type: ignore[arg-type]
