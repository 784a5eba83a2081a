"""What jobs need of a fleet: implements :class:`perfbisect.commands.fleets.Fleets`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, Environment
from perfbisect.fleet.base import Ticket
from perfbisect.fleet.building import BuildMachines
from perfbisect.fleet.executor import FleetExecutor, end_bundles
from perfbisect.fleet.folders import FolderFleet
from perfbisect.fleet.specs import absolute_fleet, build_hosts, make_fleet
from perfbisect.jobs.launch import Launch
from perfbisect.jobs.machines import MachineDocument
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.system.processes import StopRequested

__all__ = [
    "absolute_fleet",
    "check_builders",
    "count_builders",
    "end_launches",
    "find_machines",
    "make_executor",
    "make_site",
    "reclaimer",
]


def find_machines(
    spec: str, state: Path, *, devices: int = 0, workers: int | None = None, checks: bool = False
) -> Sequence[MachineDocument]:
    return make_fleet(spec, state).machines(devices=devices, workers=workers, checks=checks)


def check_builders(spec: str) -> Sequence[MachineDocument]:
    return FolderFleet(spec, partial(build_hosts, spec)).machines(checks=True)


def count_builders(spec: str) -> int:
    return len(build_hosts(spec))


def make_site(
    spec: str, setting: MeasurementConfig, repository: Repository | None, cache: Path
) -> BuildMachines | None:
    hosts = build_hosts(spec)
    return BuildMachines(hosts, setting, repository, cache) if hosts else None


def make_executor(
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
) -> FleetExecutor:
    return FleetExecutor(
        make_fleet(setting.fleet, state),
        builder,
        setting,
        client,
        wait=wait,
        interference=interference,
        stop_requested=stop_requested,
        pause=pause,
        lost={Ticket(launch.token, launch.machine) for launch in lost},
    )


def reclaimer(state: Path, builder: Builder, setting: MeasurementConfig) -> FleetExecutor:
    return FleetExecutor(make_fleet(setting.fleet, state), builder, setting)


def end_launches(spec: str, state: Path, tokens: Sequence[str], grace: float) -> int:
    return end_bundles(make_fleet(spec, state), tokens, grace)
