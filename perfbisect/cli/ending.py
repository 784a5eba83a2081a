"""The end of a verb that works on a job: what it hands out, and what its folder keeps of how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from perfbisect.cli.invocation import Working
from perfbisect.cli.output import emit
from perfbisect.errors import EXIT_INTERRUPTED, EXIT_OURS, MachineError, PerfbisectError
from perfbisect.render.documents import Document
from perfbisect.store.ending import Ending, write_ending
from perfbisect.store.jobs import Job
from perfbisect.system.whole_file import write_whole


def hand_out(document: Document, lines: Iterable[str], code: int, working: Working, job: Job) -> int:
    """Prints the result of a job, keeps the exit code of its verb, and returns it."""
    keep(job, code)
    emit(document, lines, as_json=working.as_json, full=working.full)
    return code


def keep(job: Job, code: int, result: Document | None = None) -> None:
    """Keeps the exit code of a verb in its job's folder, and its result where that is of several jobs."""
    with contextlib.suppress(MachineError):
        if result is not None:
            write_whole(job.result, result.text() + "\n")
    _keep(job, Ending(code))


@contextlib.contextmanager
def remembered(job: Job) -> Iterator[None]:
    """Keeps the error with which the work on a job ends, for ``perfbisect status``."""
    again = f"perfbisect resume {job.id}"
    try:
        yield
    except PerfbisectError as error:
        kind = type(error).__name__
        _keep(job, Ending(error.exit_code, error.message, kind, error.where, error.next))
        raise
    except KeyboardInterrupt:
        _keep(job, Ending(EXIT_INTERRUPTED, "interrupted", "Interrupted", next_step=again))
        raise
    except Exception as error:
        message = f"a mistake of perfbisect itself: {error!r}"
        _keep(job, Ending(EXIT_OURS, message, "PerfbisectError", next_step=f"report it; then: {again}"))
        raise


def _keep(job: Job, ending: Ending) -> None:
    with contextlib.suppress(MachineError):  # what was measured is in the journal; this only tells of it
        write_ending(job.path, ending)
