"""What jobs need of the machines of a fleet: ``--fleet SPEC``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

from perfbisect.changes.git import Repository
from perfbisect.commands.wings import load, wings
from perfbisect.environments.base import Builder, BuildSite, Environment
from perfbisect.errors import UsageError
from perfbisect.jobs.launch import Launch
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.measure.executor import Executor, Sink
from perfbisect.model.attempt import Attempt
from perfbisect.system.processes import StopRequested


class RemoteExecutor(Executor, Protocol):
    """Runs attempts on other machines, where they go on without this process."""

    def reclaim(self, launch: Launch, folder: Path, sink: Sink) -> Attempt | None:
        """The attempt that an earlier process of this job submitted, once it has ended; None: there is none.

        Raises:
            Interrupted: Ctrl-C or a stop; the launch is ended.
        """
        ...


class Fleets(Protocol):
    """The fleets of specifications; ``state`` is the state folder here."""

    def absolute_fleet(self, spec: str, folder: Path | None = None) -> str:
        """A specification with absolute paths, as a plan keeps it; ``folder``: of relative ones."""
        ...

    def find_machines(
        self, spec: str, state: Path, *, devices: int = 0, workers: int | None = None, checks: bool = False
    ) -> Sequence[MachineDocument]:
        """All machines that measure; one that cannot be used has no slots and says why in ``problem``.

        ``devices``: of a slot, ``workers``: slots of a machine, None: as many as it has. ``checks``: check
        each as ``perfbisect doctor`` does, which takes a second of it.

        Raises:
            MachineError: an engine does not answer.
            UsageError: the specification is wrong, or two machines have one name.
        """
        ...

    def check_builders(self, spec: str) -> Sequence[MachineDocument]:
        """The machines that build and do not measure, checked."""
        ...

    def count_builders(self, spec: str) -> int: ...

    def make_site(
        self, spec: str, setting: MeasurementConfig, repository: Repository | None, cache: Path
    ) -> BuildSite | None:
        """What builds in place of this machine; None: no machine has that role."""
        ...

    def make_executor(
        self,
        state: Path,
        builder: Builder,
        setting: MeasurementConfig,
        client: Environment | None,
        *,
        wait: float,
        interference: str,
        stop_requested: StopRequested,
        pause: Callable[[float], None],
        lost: Iterable[Launch],
    ) -> RemoteExecutor:
        """Launches on the setting's fleet. ``lost``: launches that were given up and may go on there."""
        ...

    def reclaimer(self, state: Path, builder: Builder, setting: MeasurementConfig) -> RemoteExecutor:
        """Takes back launches of the setting's fleet; nothing is launched."""
        ...

    def end_launches(self, spec: str, state: Path, tokens: Sequence[str], grace: float) -> int:
        """End launches that nobody waits for; returns how many went on.

        Raises:
            MachineError: a machine does not answer, or a launch cannot be ended; the others are ended.
        """
        ...


def fleets() -> Fleets:
    """The fleets of the wing that has them. :raises UsageError: there is none."""
    place = next((wing.fleets for wing in wings() if wing.fleets), "")
    if not place:
        raise UsageError("this perfbisect has no fleets", next_step="the same without --fleet")
    return cast(Fleets, load(place))


def absolute_fleet(spec: str, folder: Path | None = None) -> str:
    """A specification as a plan keeps it; empty: this machine."""
    return fleets().absolute_fleet(spec, folder) if spec else ""
