"""What jobs need of the machines of a fleet: ``--fleet SPEC``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from perfbisect.changes.git import Repository
from perfbisect.commands.wings import load, wings
from perfbisect.environments.base import Builder, BuildSite, Environment
from perfbisect.errors import UsageError
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.jobs.replay import Launch
from perfbisect.measure.executor import Executor, Sink
from perfbisect.model.attempt import Attempt
from perfbisect.system.processes import StopRequested, never


class RemoteExecutor(Executor, Protocol):
    """Runs attempts on other machines, where they go on without this process."""

    def reclaim(self, launch: Launch, folder: Path, sink: Sink) -> Attempt | None:
        """The attempt that an earlier process of this job submitted, once it has ended; None: there is none.

        Raises:
            Interrupted: Ctrl-C or a stop; the launch is ended.
        """
        ...


@dataclass(frozen=True)
class FleetJob:
    """What launches on other machines need of their job. ``wait``: minutes to wait for a lease.

    ``client``: the client's environment, None: each change's own. ``interference``: tolerated load of others,
    as text. ``lost``: launches that were given up and may go on there.
    """

    builder: Builder
    setting: MeasurementConfig
    client: Environment | None = None
    wait: float = 0.0
    interference: str = ""
    stop_requested: StopRequested = never
    pause: Callable[[float], None] = time.sleep
    lost: Sequence[Launch] = ()


@dataclass(frozen=True)
class Fleets:
    """What jobs need of fleets, which are named by their specifications; a path is the state folder here.

    A machine that cannot be used has no slots and says why in ``problem``. A MachineError says that an engine
    does not answer, a UsageError that a specification is wrong or that two machines have one name.
    """

    absolute: Callable[[str, Path | None], str]
    """A specification with absolute paths, as a plan keeps it, and the folder of relative ones."""
    machines: Callable[[str, Path, int, int | None], Sequence[MachineDocument]]
    """Those that measure, with slots of so many devices; so many of a machine, None: as many as it has."""
    check_machines: Callable[[str, Path], Sequence[MachineDocument]]
    """The same, each checked as ``perfbisect doctor`` does, which takes a second of it."""
    check_builders: Callable[[str], Sequence[MachineDocument]]
    """Those that build and do not measure, checked."""
    count_builders: Callable[[str], int]
    make_site: Callable[[str, MeasurementConfig, Repository | None, Path], BuildSite | None]
    """What builds in place of this machine, into a cache; None: no machine has that role."""
    make_executor: Callable[[Path, FleetJob], RemoteExecutor]
    """Launches on the fleet of the job's setting."""
    end_launches: Callable[[str, Path, Sequence[str], float], int]
    """End launches by their tokens within so many seconds; returns how many went on.

    Raises MachineError where a machine does not answer, or one cannot be ended; the others are ended.
    """


def fleets() -> Fleets:
    """The fleets of the wing that has them. :raises UsageError: there is none."""
    place = next((wing.fleets for wing in wings() if wing.fleets), "")
    if not place:
        raise UsageError("this perfbisect has no fleets", next_step="the same without --fleet")
    return cast(Fleets, load(place))


def absolute_fleet(spec: str, folder: Path | None = None) -> str:
    """A specification as a plan keeps it; empty: this machine."""
    return fleets().absolute(spec, folder) if spec else ""
