"""From what was typed to a range: releases of a package, the budget, what must be told of the repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perfbisect.cli.place import Place
from perfbisect.config.settings import FILE
from perfbisect.core.bisect import Costs
from perfbisect.core.change import History
from perfbisect.core.durations import parse_minutes
from perfbisect.errors import UsageError
from perfbisect.jobs.plan import Position, Setting
from perfbisect.system.releases import between, published
from perfbisect.system.slots import Slot

_DEFAULT_BUDGET = 900.0


def budget(place: Place, typed: float | None) -> float:
    """Minutes of measuring: typed, of ``perfbisect.yaml``, or fifteen hours.

    :raises UsageError: ``perfbisect.yaml`` says what is no duration.
    """
    if typed is not None:
        return typed
    if place.settings.budget is None:
        return _DEFAULT_BUDGET
    try:
        return parse_minutes(place.settings.budget)
    except ValueError as error:
        raise UsageError(f"budget: {error}", where=place.root / "perfbisect.yaml") from None


def releases(
    package: str, good: str, bad: str, versions: str | None, names: tuple[str, str] = ("good", "bad")
) -> History:
    """The releases of a package from good to bad: those named, or those of the registry.

    :raises RevisionError: an end is no release, or they are the same or the wrong way round.
    :raises MachineError: the registry cannot be asked.
    """
    known = (
        tuple(part.strip() for part in versions.split(",") if part.strip())
        if versions
        else published(package)
    )
    return between(package, known, good, bad, names)


def costs(environment: str) -> Costs:
    """Minutes expected of a build, by the kind of environment; launches and runs as the method has them."""
    build = {"overlay": 0.1, "existing": 0.0, "release": 1.5}.get(environment.partition(":")[0], 4.0)
    return Costs(build=build)


def told(place: Place, setting: Setting) -> tuple[str, ...]:
    """What a reader must know of the repository; ``perfbisect.yaml`` in it is ours and no change."""
    ours = (".", f":(exclude,top){FILE}")
    if setting.repository and place.repository is not None and place.repository.is_dirty(*ours):
        return ("the work tree has uncommitted changes: they are not measured and not touched",)
    return ()


def told_of_slots(slots: Sequence[Slot]) -> tuple[str, ...]:
    """Where the launches run, where that is not simply the whole machine."""
    told = []
    if any(slot.env and not slot.devices for slot in slots):
        told.append("the cell reserves no device (gpus: 0): its engine sees none of those that are here")
    for slot in slots:
        parts = [f"devices {', '.join(slot.devices)}"] if slot.devices else []
        if slot.cores:
            server, client = spans(slot.server_cores), spans(slot.client_cores)
            parts.append(f"cores {server} for the server, {client} for the client")
        if slot.name:
            told.append(f"slot {slot.name}: {'; '.join(parts)}")
    return tuple(told)


def spans(cores: Sequence[int]) -> str:
    """``0-3,8``: processors as the kernel lists them."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def weigh(place: Place, path: Path) -> Callable[[Sequence[Position]], tuple[float, ...]]:
    """Prior weights of positions by the files that their changes touch, or by the commits that a file names.

    :raises LocatedError: the file is wrong.
    """
    from perfbisect.config.commit_weights import load_commit_weights
    from perfbisect.config.weights import load_weights
    from perfbisect.core.suspect_prior import position_weights
    from perfbisect.core.weights import weights

    commits = load_commit_weights(path)
    if commits is not None:
        return lambda positions: position_weights(
            [[change.source for change in position.changes] for position in positions], commits
        )
    rules, repository = load_weights(path), place.needed_repository()

    def of(positions: Sequence[Position]) -> tuple[float, ...]:
        files = repository.files_of(change.id for position in positions for change in position.changes)
        touched = [
            tuple(name for change in position.changes for name in files.get(change.id, ()))
            for position in positions
        ]
        return weights(touched, rules)

    return of


def deploy(place: Place) -> Callable[[str, str], str | None]:
    """(commit, path) -> the blob there: whether a file differs between two commits."""

    def blob(sha: str, path: str) -> str | None:
        if place.repository is None:
            return None
        return place.repository.blobs(sha, path).get(path)

    return blob
