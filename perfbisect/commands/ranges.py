"""Budget, costs and notes of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfbisect.cells.settings import FILE
from perfbisect.commands.workspace import Workspace
from perfbisect.common.quantities import parse_minutes
from perfbisect.errors import UsageError
from perfbisect.jobs.measurement import MeasurementConfig
from perfbisect.machine.slots import Slot
from perfbisect.model.attempt import Costs

_DEFAULT_BUDGET = 900.0


def budget_minutes(place: Workspace, typed: float | None) -> float:
    """The budget of the option, of ``perfbisect.yaml``, or fifteen hours.

    Raises:
        UsageError: ``perfbisect.yaml`` has an invalid duration.
    """
    if typed is not None:
        return typed
    if place.settings.budget is None:
        return _DEFAULT_BUDGET
    try:
        return parse_minutes(place.settings.budget)
    except ValueError as error:
        raise UsageError(f"budget: {error}", where=place.root / "perfbisect.yaml") from None


def costs(environment: str) -> Costs:
    """Default costs, with the build time of the kind of environment."""
    build = {"overlay": 0.1, "existing": 0.0, "release": 1.5}.get(environment.partition(":")[0], 4.0)
    return Costs(build=build)


def deploy_blob_reader(place: Workspace) -> Callable[[str, str], str | None]:
    """Return a function that gives the blob id of a path at a commit."""

    def blob(sha: str, path: str) -> str | None:
        if place.repository is None:
            return None
        return place.repository.tree_id(sha, path)

    return blob


def repository_notes(place: Workspace, setting: MeasurementConfig) -> tuple[str, ...]:
    """Notes on uncommitted changes, other than ``perfbisect.yaml``."""
    ours = (".", f":(exclude,top){FILE}")
    if setting.repository and place.repository is not None and place.repository.is_dirty(*ours):
        return ("the work tree has uncommitted changes: they are not measured and not touched",)
    return ()


def slot_notes(slots: Sequence[Slot]) -> tuple[str, ...]:
    """Notes on the devices and cores of the slots, if they are part of the machine."""
    notes = []
    if any(slot.env and not slot.devices for slot in slots):
        notes.append("the cell reserves no device (gpus: 0): its engine sees none of those that are here")
    for slot in slots:
        parts = [f"devices {', '.join(slot.devices)}"] if slot.devices else []
        if slot.cores:
            server, client = spans(slot.server_cores), spans(slot.client_cores)
            parts.append(f"cores {server} for the server, {client} for the client")
        if slot.name:
            notes.append(f"slot {slot.name}: {'; '.join(parts)}")
    return tuple(notes)


def spans(cores: Sequence[int]) -> str:
    """Format processors as the kernel does: ``0-3,8``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
