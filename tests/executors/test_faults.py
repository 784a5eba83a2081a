"""The table of whose a failure is: every row is reached, and what is read in real logs falls into its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfbisect.core.attempt import Fault, Phase
from perfbisect.errors import BuildError, ClientError, MachineError, ServerError
from perfbisect.executors import fault_table
from perfbisect.executors.fault_table import TABLE
from perfbisect.executors.faults import Judge, VoidError
from perfbisect.system import machine

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
WARNED = (
    "(APIServer pid=1) WARNING 11-21 12:58:32 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.\n"
)
ENDED = ServerError("the server ended with exit code 0 during the run")
FAILED = ServerError("the server ended with exit code 1 before it was ready")
FREE = "ValueError: Free memory on device cuda:0 (9.1/79.1 GiB) on startup is less than desired GPU memory "


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
        (ServerError("the server was ended by signal 15 during the run"), "", "machine", "from outside"),
        (ServerError("the server was ended by signal 6 during the run"), "", "change", "crashed"),
        (ServerError("the server had 2 requests unfinished when the limit"), "", "change", "hung"),
        (ClientError("the client was ended by signal 11"), "", "client", "still answers"),
        (ClientError("the client ended with exit code 2"), "bench serve: error: x", "client", "arguments"),
        (
            ClientError("the client ended with exit code 1: FileNotFoundError: a.json"),
            "",
            "client",
            "dataset",
        ),
        (ClientError("the client did not end within 3600 s and was stopped"), "", "client", "client hung"),
        (BuildError("compiled sources differ"), "torch.OutOfMemoryError", "change", "not built"),
        (BuildError("uv: 503 Server Error: Service Unavailable"), "", "machine", "hub"),
        (MachineError("the lease is lost: x.lock was removed"), "", "machine", "lease"),
        (MachineError("torch.OutOfMemoryError"), "", "machine", "machine failed"),
        (OSError(28, "No space left on device"), "", "machine", "disk is full"),
        (VoidError("void: other work used 60% of 2 processor(s)"), "", "machine", "over the limit"),
    ],
)
def test_whose_it_is(error: Exception, log: str, fault: Fault, means: str) -> None:
    row = Judge(NO_OOM).row(error, "bench", log)
    assert (row.fault, means in row.means) == (fault, True), row


def test_memory_that_sufficed_before_is_the_machines() -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert Judge(NO_OOM, measured_before=True).fault(FAILED, "launch", said) == "machine"
    assert Judge(NO_OOM, measured_before=False).fault(FAILED, "launch", said) == "change"


def test_oom_killer_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "oom_kills", lambda: 4)
    assert Judge(3).row(FAILED, "launch").means.startswith("the kernel ended a process")
    assert Judge(4).row(FAILED, "launch").fault == "change"


@pytest.mark.parametrize("phase", ["launch", "stop"])
def test_what_cannot_be_ended_is_no_change(phase: Phase) -> None:
    assert Judge(NO_OOM).fault(FAILED, phase) == ("machine" if phase == "stop" else "change")


def test_every_pattern_finds_its_own_example() -> None:
    for row in TABLE:
        if row.pattern:
            assert re.search(row.pattern, row.example), row.means


def test_every_failure_has_a_row() -> None:
    """The last rows fit whatever is left, for each who can fail."""
    for error in (ServerError("?"), ClientError("?"), BuildError("?"), MachineError("?"), OSError("?")):
        assert Judge(NO_OOM).row(error, "bench").means


def test_page_shows_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()
    assert fault_table.markdown() in page, "docs/faults.md: put fault_table.markdown() there again"
