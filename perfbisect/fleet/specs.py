"""From ``--fleet`` as it is typed to its fleet, and what jobs need of it."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Final

from perfbisect.commands.fleets import Fleets
from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.fleet.building import BuildMachines
from perfbisect.fleet.executor import FleetExecutor, end_bundles
from perfbisect.fleet.folders import FolderFleet, Hosts
from perfbisect.fleet.hosts import FOLDER, FleetHost, HostSettings, read_hosts
from perfbisect.fleet.ray_cluster import RayCluster
from perfbisect.fleet.slurm import SlurmOptions, slurm_hosts

_JOINT = "+"
_ADVICE = "--fleet ssh:hosts.yaml, slurm:partition=NAME or ray:ADDRESS, or two of them joined by +"


def _ssh(argument: str, folder: Path) -> Hosts:
    del folder
    if not argument:
        raise UsageError("--fleet ssh names no file of hosts", next_step="--fleet ssh:hosts.yaml")
    hosts = read_hosts(Path(argument).expanduser())
    return lambda: hosts


def _slurm(argument: str, folder: Path) -> Hosts:
    options = SlurmOptions(**_options("slurm", argument, [field.name for field in fields(SlurmOptions)]))
    here = (sys.executable, "-c", "from perfbisect.cli import main; main()")
    return cache(partial(slurm_hosts, options, str(folder), (options.command,) if options.command else here))


def _ray(argument: str, folder: Path) -> Hosts:
    del folder
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "--fleet ray: Ray is not installed here",
            next_step="pip install 'perfbisect[ray]' 'ray==VERSION', in the version of the cluster",
        )
    address, _, text = argument.partition(",")
    options = _options("ray", text, ["folder", "command", "profile"])
    settings = HostSettings(
        folder=options.get("folder", FOLDER),
        command=tuple(shlex.split(options.get("command", ""))),
        profile=options.get("profile", ""),
    )
    return RayCluster(address or "auto", settings).hosts


def _options(engine: str, text: str, known: Sequence[str]) -> dict[str, str]:
    """The options ``NAME=VALUE`` of an engine, which commas separate."""
    given: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in known or not equals:
            raise UsageError(
                f"--fleet {engine}: {part!r} is no option{hint(name, known)}",
                next_step=f"one of {', '.join(f'{name}=' for name in known)}",
            )
        given[name] = value
    return given


ENGINES: Final[Mapping[str, Callable[[str, Path], Hosts]]] = {
    "ssh": _ssh,
    "slurm": _slurm,
    "ray": _ray,
}
"""What lists the machines of ``NAME[:ARGUMENT]``, by name; the folder is here, for shared file systems."""


def absolute_fleet(spec: str, folder: Path | None = None) -> str:
    """A specification with absolute paths, as a plan keeps it; ``folder``: of relative ones."""
    parts = []
    for name, argument in split_fleet(spec):
        if name == "ssh" and argument:
            argument = str((folder or Path()).absolute() / Path(argument).expanduser())
        parts.append(f"{name}:{argument}" if argument else name)
    return _JOINT.join(parts)


def make_fleet(spec: str, state: Path) -> FolderFleet:
    """The fleet of a specification; engines are joined by ``+``. ``state``: the state folder here.

    Raises:
        UsageError: it is wrong.
    """
    engines = []
    for name, argument in split_fleet(spec):
        if name not in ENGINES:
            raise UsageError(
                f"--fleet {spec!r}: there is no engine {name!r}{hint(name, ENGINES)}", next_step=_ADVICE
            )
        engines.append(ENGINES[name](argument, state / "fleet"))
    if not engines:
        raise UsageError("--fleet is empty", next_step=_ADVICE)
    return FolderFleet(spec, *engines)


def build_hosts(spec: str) -> tuple[FleetHost, ...]:
    """The machines with the role ``build`` in the files of hosts of a specification."""
    files = [Path(argument).expanduser() for name, argument in split_fleet(spec) if name == "ssh"]
    return tuple(host for file in files for host in read_hosts(file, builds=True))


def split_fleet(spec: str) -> list[tuple[str, str]]:
    """Names and arguments of a specification: a ``+`` counts where the name of an engine follows."""
    parts: list[str] = []
    for part in filter(None, spec.split(_JOINT)):
        # Nodes of Slurm are joined by + as well: nodes=a+b.
        if parts and part.partition(":")[0] not in ENGINES and ":" in parts[-1]:
            parts[-1] += _JOINT + part
        else:
            parts.append(part)
    return [(name, argument) for name, _, argument in (part.partition(":") for part in parts)]


FLEETS: Final = Fleets(
    absolute=absolute_fleet,
    machines=lambda spec, state, devices, workers: make_fleet(spec, state).machines(
        devices=devices, workers=workers
    ),
    check_machines=lambda spec, state: make_fleet(spec, state).machines(checks=True),
    check_builders=lambda spec: FolderFleet(spec, partial(build_hosts, spec)).machines(checks=True),
    count_builders=lambda spec: len(build_hosts(spec)),
    make_site=lambda spec, setting, repository, cache: (
        BuildMachines(hosts, setting, repository, cache) if (hosts := build_hosts(spec)) else None
    ),
    make_executor=lambda state, job: FleetExecutor(make_fleet(job.setting.fleet, state), job),
    end_launches=lambda spec, state, tokens, grace: end_bundles(make_fleet(spec, state), tokens, grace),
)
"""What jobs need of a fleet."""
