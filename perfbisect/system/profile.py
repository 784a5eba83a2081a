"""What kind of machine this is: how its devices are seen and chosen, and what a server needs besides."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfbisect.config.profile import Asked, Listed, MachineFile
from perfbisect.errors import MachineError
from perfbisect.system import devices
from perfbisect.system.command_smi import CommandSmi, Queries, Query
from perfbisect.system.devices import Gpu
from perfbisect.system.nvidia_smi import Smi


@dataclass(frozen=True)
class Lease:
    """A command in front of the server's, such as a queue's wrapper.

    ``{gpus}`` in it is the number of the slot's devices, ``{devices}`` their numbers. ``lost``: exit codes by
    which it says that it was not granted or was taken away; below 0: signals.
    """

    command: tuple[str, ...] = ()
    lost: tuple[int, ...] = (75,)


@dataclass(frozen=True)
class Profile:
    """A kind of machine.

    ``source``: who tells of devices: the driver of NVIDIA, nobody, or the commands of ``queries``.
    ``variable`` is given the numbers of the chosen devices, ``beside`` stands with it. ``platform``: the
    section of a deploy YAML of vLLM-Omni that holds on it. ``env`` and ``serve_args`` are every server's,
    where the cell does not say otherwise.
    """

    name: str = "cuda"
    source: Literal["nvidia-smi", "none", "commands"] = "nvidia-smi"
    variable: str = "CUDA_VISIBLE_DEVICES"
    beside: Mapping[str, str] = field(default_factory=lambda: {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    platform: str = "cuda"
    env: Mapping[str, str] = field(default_factory=dict)
    serve_args: Mapping[str, object] = field(default_factory=dict)
    lease: Lease = Lease()
    queries: Queries | None = None

    @property
    def mark(self) -> str:
        """What it adds to the machine class: what is served in another way is not comparable."""
        plain = self.source != "commands" and not self.env and not self.serve_args
        words = [f"{key}={value}" for key, value in sorted({**self.env, **self.serve_args}.items())]
        return "" if plain else " ".join((self.name, *words))

    def smi(self) -> Smi | None:
        """Who is asked of devices; None: the driver of NVIDIA, as everywhere."""
        if self.source == "nvidia-smi":
            return None
        if self.queries is None or self.source == "none":
            return Smi(command=None)
        return CommandSmi(
            command=shutil.which(self.queries.devices.command[0]), queries=self.queries, name=self.name
        )

    def devices(self) -> tuple[Gpu, ...]:
        """All devices of the machine; empty where there are none, or nobody tells."""
        asked = self.smi()
        return devices.gpus() if asked is None else devices.look(asked)

    def mask(self, group: Sequence[Gpu]) -> dict[str, str]:
        """What makes an engine see a group of devices and nothing else, in this order.

        Whole devices by number: most versions of vLLM read the variable as integers and end on a UUID (vLLM
        issues 13815, 41848). CUDA counts as the driver does only in PCI order. A MIG instance has no number.
        """
        if any(gpu.parent for gpu in group):
            return {self.variable: ",".join(gpu.uuid for gpu in group)}
        return {**self.beside, self.variable: ",".join(str(gpu.index) for gpu in group)}

    def none_of(self, devices: Sequence[Gpu]) -> dict[str, str]:
        """What keeps an engine from all of them; nothing where there are none."""
        return self.mask(()) if devices else {}

    def before(self, count: int, env: Mapping[str, str]) -> tuple[str, ...]:
        """The words in front of the server's command, on a slot of so many devices.

        :raises MachineError: there is no such command.
        """
        if not self.lease.command:
            return ()
        command = self.lease.command[0]
        if shutil.which(command) is None:
            raise MachineError(
                f"the lease command {command!r} of machine {self.name!r} is not there",
                next_step="install it, or mend lease.command in the machine's file",
            )
        told = {"gpus": str(count), "devices": env.get(self.variable, "")}
        return tuple(
            re.sub(r"\{(gpus|devices)\}", lambda found: told[found[1]], word) for word in self.lease.command
        )


CUDA = Profile()


def profile_of(file: MachineFile) -> Profile:
    """The profile that a machine file describes."""
    select = file.select
    listed = file.devices
    return Profile(
        name=file.name,
        source="commands" if isinstance(listed, Listed) else listed,
        variable=select.variable if select else CUDA.variable,
        beside=select.env if select else {},
        platform=file.platform,
        env=file.env,
        serve_args=file.serve_args,
        lease=Lease(file.lease.command, file.lease.lost) if file.lease else Lease(),
        queries=Queries(
            Query(listed.command, listed.each),
            _query(file.driver),
            _query(file.memory),
            _query(file.tenants),
            listed.count,
        )
        if isinstance(listed, Listed)
        else None,
    )


def _query(asked: Asked | None) -> Query | None:
    return None if asked is None else Query(asked.command, asked.each)
