"""Jobs that were named to be imported: found, compared with what will be measured, written down."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perfbisect.cli import wiring
from perfbisect.cli.place import Place
from perfbisect.clients import CLIENTS
from perfbisect.core.cell import Cell
from perfbisect.environments import Environment
from perfbisect.executors.provenance import instrument
from perfbisect.jobs.compare_plan import ComparePlan
from perfbisect.jobs.imports import Imported, check_imports, imports_from
from perfbisect.store.jobs import Job
from perfbisect.system import environ
from perfbisect.system.machine import machine
from perfbisect.system.slots import Slot

PLAIN = " plain"
"""How the digest of a client ends that was told to print no table."""


def chosen(here: Place, names: Iterable[str], plan: ComparePlan, slot: Slot) -> tuple[Imported, ...]:
    """The launches of earlier jobs that were of one of the sides, on a machine like this one.

    :raises UsageError: no such job, or one that cannot be compared: the field, with both values.
    """
    jobs = dict.fromkeys(here.jobs.find(name) for name in names)
    found = tuple(one for job in jobs for one in imports_from(job, plan))
    if found:
        profile = wiring.profile_named(plan.setting.machine)
        check_imports(found, machine_class=machine({**os.environ, **slot.env}, profile).kind)
    return found


def check_client(found: Sequence[Imported], cell: Cell, pinned: Environment | None, job: Job) -> None:
    """Refuses launches that another client measured, before anything is launched.

    Where each change brings its own client it is only known later.

    :raises UsageError: the field, with both values.
    :raises ClientError: the client's sources cannot be read.
    """
    if not found or pinned is None:
        return
    for plain in (False, True):
        theirs = [x for x in found if x.attempt.provenance.client_digest.endswith(PLAIN) is plain]
        check_imports(theirs, client=client_here(cell, pinned, job, plain=plain))


def client_here(cell: Cell, pinned: Environment, job: Job, *, plain: bool) -> tuple[str, str]:
    """Digest and era of the client with which a job will measure.

    :raises ClientError: its sources cannot be read.
    """
    client = CLIENTS[cell.client.name]
    env = environ.for_interpreter(dict(os.environ), pinned.interpreter, pinned.env, client.env(cell))
    ours = replace(instrument(client, pinned, env, job.path), forced_plain=plain)
    return ours.digest, ours.era
