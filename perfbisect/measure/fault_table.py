"""The one table of whose a failure is; docs/errors.md shows the same rows.

The first row that fits counts, so what names a cause stands before what names a consequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfbisect.errors import FaultCode
from perfbisect.model.attempt import Fault

Event = Literal["oom kill", "machine", "build", "server", "client"]
"""What perfbisect observed: an OOM kill during the attempt, or which part failed."""


@dataclass(frozen=True)
class Row:
    """One kind of failure. ``means``: it in words; ``do``: what the user does; ``example``: what is read.

    It fits a failure that was raised with its ``code``. A row with a ``pattern`` or an ``event`` also fits a
    failure with that pattern in the output of another program and with that event observed.
    """

    code: FaultCode
    means: str
    fault: Fault
    do: str
    example: str
    pattern: str = ""
    event: Event | None = None
    if_measured: bool = False
    """Only where another launch of the same change has measured."""
    if_silent: bool = False
    """Only where the log names no error: an engine that fails by itself says why."""


_WAIT = "nothing: it is waited out and measured again"
_ROOM = "make room, then `perfbisect resume`"
_HOLDER = "see who holds it: `perfbisect doctor`; it is measured again"
_SKIP = "nothing: tried once more, then left out as a skip"
_MEND = "mend the cell or `--client`, then `perfbisect resume`"

TABLE: tuple[Row, ...] = (
    Row(
        "load_exceeded",
        "the load was over the limit",
        "machine",
        "end what else runs there; it is measured again",
        "others used 1.4 cores, the limit is 0.5",
    ),
    Row(
        "oom_killed",
        "the kernel ended a process for lack of memory",
        "machine",
        "give it more memory, or end what else runs there",
        "the kernel's count of OOM kills rose",
        event="oom kill",
    ),
    Row(
        "port_taken",
        "a port is taken or shared",
        "machine",
        "end that process; nothing measured on this port is kept",
        "another process listens on port 31337; Address already in use",
        r"[Aa]ddress already in use|Errno 98\b",
    ),
    Row(
        "lease_lost",
        "the lease is lost",
        "machine",
        "leave the lock files alone",
        "GPU-1b2c.lock was removed",
    ),
    Row(
        "disk_full",
        "the disk is full",
        "machine",
        _ROOM,
        "OSError: [Errno 28] No space left on device",
        r"No space left on device|Disk quota exceeded|ENOSPC|Errno 28\b|Errno 122\b",
    ),
    Row(
        "file_size_limit",
        "a file may not grow any more",
        "machine",
        "raise `ulimit -f`",
        "OSError: [Errno 27] File too large",
        r"File too large|Errno 27\b",
    ),
    Row(
        "read_only_disk",
        "the file system is read-only",
        "machine",
        "see `dmesg`, or give another `--state` and PERFBISECT_CACHE",
        "OSError: [Errno 30] Read-only file system",
        r"Read-only file system|Errno 30\b",
    ),
    Row(
        "out_of_memory",
        "no memory is left",
        "machine",
        "end what else runs there, or use a smaller model or cache",
        "MemoryError; std::bad_alloc; Cannot allocate memory",
        r"Cannot allocate memory|\bMemoryError\b|std::bad_alloc|Errno 12\b",
    ),
    Row(
        "descriptor_limit",
        "no file descriptor is left",
        "machine",
        "raise `ulimit -n`",
        "OSError: [Errno 24] Too many open files",
        r"Too many open files|Errno 24\b",
    ),
    Row(
        "process_limit",
        "no process or thread is left",
        "machine",
        "raise `ulimit -u`, or the container's limit of processes",
        "RuntimeError: can't start new thread",
        r"Resource temporarily unavailable|can't start new thread",
    ),
    Row(
        "device_memory_taken",
        "another process holds the device's memory",
        "machine",
        _HOLDER,
        "Free memory on device cuda:0 (9.1/79.1 GiB) on startup is less than desired GPU memory utilization",
        r"Free memory on device.*less than (?:desired|the engine's)|Error in memory profiling"
        r"|all CUDA-capable devices are busy",
    ),
    Row(
        "device_failed",
        "the device or its driver failed",
        "machine",
        "see `nvidia-smi` and `dmesg`; reset or replace the device",
        "CUDA error: uncorrectable ECC error encountered",
        r"uncorrectable ECC|GPU is lost|fallen off the bus|NVRM: Xid|no CUDA-capable device"
        r"|CUDA driver version is insufficient|Driver/library version mismatch|device unavailable",
    ),
    Row(
        "hub_unreachable",
        "the network or the hub does not answer",
        "machine",
        "see HF_TOKEN, HF_ENDPOINT and HF_HOME, or bring the files there and set HF_HUB_OFFLINE=1",
        "401 Client Error; 503 Server Error; Max retries exceeded; LocalEntryNotFoundError",
        r"couldn't connect to|LocalEntryNotFoundError|Max retries exceeded|Errno -[23]\b|name resolution"
        r"|\b[45]\d\d (?:Client|Server) Error|HfHubHTTPError|RepositoryNotFoundError|GatedRepoError",
    ),
    Row(
        "device_out_of_memory",
        "out of memory, where the same change has measured before",
        "machine",
        _HOLDER,
        "torch.OutOfMemoryError: CUDA out of memory",
        if_measured=True,
        pattern=r"OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks",
    ),
    Row(
        "device_out_of_memory",
        "out of device memory, on a change that never measured",
        "change",
        _SKIP,
        "torch.OutOfMemoryError: CUDA out of memory",
        r"OutOfMemoryError|CUDA out of memory|No available memory for the cache blocks",
        event="server",
    ),
    Row(
        "crashed",
        "a process crashed",
        "change",
        _SKIP,
        "Fatal Python error: Segmentation fault",
        r"exit code: -(?:4|5|6|7|8|11|31)\b"
        r"|core proc\(s\): \{[^}]*: -(?:4|5|6|7|8|11|31)\b|Fatal Python error|Segfault encountered"
        r"|\*\*\* SIG(?:SEGV|ABRT|BUS|FPE|ILL)|terminate called after throwing",
    ),
    Row(
        "killed",
        "it was ended from outside",
        "machine",
        "see who ends processes there (`dmesg`, the scheduler); " + _WAIT,
        "the server was ended by signal 9; Worker proc died unexpectedly (exit code: -9)",
        r"exit code:? -(?:9|15)\b|core proc\(s\): \{[^}]*: -(?:9|15)\b",
    ),
    Row(
        "terminated",
        "it was told to end from outside",
        "machine",
        "see who ends processes there; " + _WAIT,
        "[shutdown] API server: shutdown triggered",
        if_silent=True,
        pattern=r"API server: shutdown triggered|EngineCore: trigger received signal",
    ),
    Row(
        "engine_vanished",
        "the engine's process vanished without a word",
        "machine",
        "see `dmesg`; " + _WAIT,
        "[shutdown] MPClient: engine core exited unexpectedly",
        if_silent=True,
        pattern=r"engine core exited unexpectedly|[Cc]ore process \S+ died unexpectedly"
        r"|Worker proc \S+ died unexpectedly(?! \(exit code: \d)",
    ),
    Row(
        "machine_failed",
        "the machine failed",
        "machine",
        _WAIT,
        "another perfbisect has been building it for 3600 s",
        event="machine",
    ),
    Row(
        "build_failed",
        "the environment is not built, or is not the change",
        "change",
        "read the build log; or another `--env`",
        "the compiled sources differ from the release's",
        event="build",
    ),
    Row(
        "server_hung",
        "the server hung",
        "change",
        _SKIP,
        "3 requests are unfinished at the limit of the run",
    ),
    Row(
        "server_option_unknown",
        "the engine does not know an option of the cell",
        "change",
        _SKIP,
        "vllm serve: error: unrecognized arguments: --kv-cache-dtype",
        r"serve: error:|unrecognized arguments|invalid choice",
        event="server",
    ),
    Row(
        "engine_import_failed",
        "the engine does not import",
        "change",
        _SKIP,
        "ImportError: cannot import name 'x' from 'vllm'",
        r"ImportError|ModuleNotFoundError|undefined symbol",
        event="server",
    ),
    Row(
        "model_unsupported",
        "the engine does not serve this model",
        "change",
        _SKIP,
        "ValueError: Model architectures ['X'] are not supported for now",
        r"Model architectures|not supported|Unsupported",
        event="server",
    ),
    Row(
        "server_failed",
        "the server failed",
        "change",
        _SKIP,
        "EngineCore encountered a fatal error; exit code 1 before it was ready",
        event="server",
    ),
    Row(
        "client_option_unknown",
        "the client does not know its own arguments",
        "client",
        _MEND,
        "vllm bench serve: error: unrecognized arguments: --goodput",
        r"bench serve: error:|unrecognized arguments|invalid choice",
        event="client",
    ),
    Row(
        "dataset_unreadable",
        "the client cannot read its dataset",
        "client",
        "see `dataset_path` of the cell, then `perfbisect resume`",
        "FileNotFoundError: ShareGPT_V3.json",
        event="client",
        pattern=r"[Dd]ataset|FileNotFoundError|No such file or directory",
    ),
    Row(
        "client_hung",
        "the client hung",
        "client",
        _MEND,
        "the client did not end within 3600 s and was stopped",
    ),
    Row(
        "client_failed",
        "the client failed, and the server still answers",
        "client",
        _MEND,
        "none of 40 requests completed; run-1.json is not JSON",
        event="client",
    ),
)
"""Every way in which an attempt fails. The last rows of a kind fit whatever is left of it."""


def markdown() -> str:
    """The rows as docs/errors.md shows them."""
    head = "| code | what happened | fault | what to do | example |\n|---|---|---|---|---|\n"
    rows = (f"| `{row.code}` | {row.means} | {row.fault} | {row.do} | `{row.example}` |\n" for row in TABLE)
    return head + "".join(rows)
