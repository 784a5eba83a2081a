"""From ``--fleet`` as it is typed to its fleet, and to the slots of its machines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar

from perfbisect.common.text import hint
from perfbisect.errors import UsageError
from perfbisect.fleet.folders import FolderFleet, Hosts
from perfbisect.fleet.hosts import FleetHost, read_hosts
from perfbisect.fleet.ray_cluster import RayCluster, RayOptions
from perfbisect.fleet.slurm import SlurmOptions, slurm_hosts
from perfbisect.machine.slots import Slot

_Options = TypeVar("_Options", SlurmOptions, RayOptions)

_JOINT = "+"
_ADVICE = "--fleet ssh:hosts.yaml, slurm:partition=NAME or ray:ADDRESS, or two of them joined by +"


def _ssh(argument: str, folder: Path) -> Hosts:
    del folder
    if not argument:
        raise UsageError("--fleet ssh names no file of hosts", next_step="--fleet ssh:hosts.yaml")
    hosts = read_hosts(Path(argument).expanduser())
    return lambda: hosts


def _slurm(argument: str, folder: Path) -> Hosts:
    options = _options("slurm", argument, SlurmOptions)
    here = (sys.executable, "-c", "from perfbisect.cli import main; main()")
    return cache(partial(slurm_hosts, options, str(folder), (options.command,) if options.command else here))


def _ray(argument: str, folder: Path) -> Hosts:
    del folder
    if importlib.util.find_spec("ray") is None:
        raise UsageError(
            "--fleet ray: Ray is not installed here",
            next_step="pip install 'perfbisect[ray]' 'ray==VERSION', in the version of the cluster",
        )
    address, _, options = argument.partition(",")
    return RayCluster(address or "auto", _options("ray", options, RayOptions)).hosts


def _options(engine: str, text: str, options: type[_Options]) -> _Options:
    """The options ``NAME=VALUE`` of an engine, which commas separate."""
    known = [field.name for field in fields(options)]
    given: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if name not in known or not equals:
            raise UsageError(
                f"--fleet {engine}: {part!r} is no option{hint(name, known)}",
                next_step=f"one of {', '.join(f'{name}=' for name in known)}",
            )
        given[name] = value
    return options(**given)


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


def slot_there(slot: Slot) -> Slot:
    """A slot of a fleet as its own machine names it."""
    name = slot.name.removeprefix(slot.machine).removeprefix("/")
    return replace(slot, name=name, machine="")
