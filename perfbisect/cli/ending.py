"""The end of a verb that works on a job: what it hands out, and what its folder keeps of how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfbisect.cli.options import Working
from perfbisect.cli.output import emit
from perfbisect.errors import EXIT_OURS, PerfbisectError
from perfbisect.render.documents import Document
from perfbisect.store.ending import Ending, write_ending
from perfbisect.store.jobs import Job


def hand_out(document: Document, lines: Iterable[str], code: int, working: Working, job: Job) -> int:
    """Prints the result of a job, keeps the exit code of its verb, and returns it."""
    keep(job, code)
    emit(document, lines, as_json=working.as_json, full=working.full)
    return code


def keep(job: Job, code: int, result: Document | None = None) -> None:
    """Keeps the exit code of the verb in a job's folder, and its result where that is of more jobs than one."""
    with contextlib.suppress(OSError):
        if result is not None:
            job.result.write_text(result.text() + "\n", encoding="utf-8")
        write_ending(job.path, Ending(code))


@contextlib.contextmanager
def remembered(job: Job) -> Iterator[None]:
    """Keeps the error with which the work on a job ends, for ``perfbisect status``."""
    try:
        yield
    except PerfbisectError as error:
        kind = type(error).__name__
        _keep(job.path, Ending(error.exit_code, error.message, kind, error.where, error.next))
        raise
    except Exception as error:
        _keep(job.path, Ending(EXIT_OURS, f"a mistake of perfbisect itself: {error!r}", "PerfbisectError"))
        raise


def _keep(folder: Path, ending: Ending) -> None:
    with contextlib.suppress(OSError):
        write_ending(folder, ending)
