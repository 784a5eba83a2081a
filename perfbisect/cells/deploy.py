"""Deploy YAML of staged servers: changes between commits and devices of stages."""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfbisect.common.yaml_source import Located, Place, parse
from perfbisect.errors import LocatedError
from perfbisect.model.cell import Cell, DeployYaml
from perfbisect.model.change import Change

DeployText = Callable[[str, str], str | None]
"""(commit, path) -> the file's text, or None if there is no such file."""

_STAGE_LISTS = ("stages", "stage_args")
_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size")
_PLACING = ("devices", "num_replicas", *_DEGREES)
_NESTED = ("runtime", "engine_args")
"""Mappings inside a stage that hold the same keys and take precedence."""
_NUMBER = re.compile(r"[0-9]{1,9}")


def deploy_changes(cell: Cell, changes: Sequence[Change], deploy: DeployText | None) -> frozenset[str]:
    """Ids of changes that change the cell's deploy YAML, if it is taken from the change."""
    source = cell.deploy_yaml
    if source is None or source.origin is None or source.path is None or deploy is None:
        return frozenset()
    texts = [deploy(change.source, source.path) if change.kind == "commit" else None for change in changes]
    return frozenset(change.id for i, change in enumerate(changes) if i and texts[i] != texts[i - 1])


@dataclass(frozen=True)
class PlacedStage:
    """The devices of a stage as written; numbers count within the devices that the engine sees.

    Each of ``replicas`` has ``each`` devices. ``field``, ``file``, ``line``: where they are set; no file for
    stage overrides of the cell.
    """

    stage: str
    devices: object
    replicas: int = 1
    each: int = 1
    field: str = ""
    file: str = ""
    line: int | None = None

    @property
    def needs(self) -> int:
        """Number of devices that must exist; 0 if the stage does not name numbers."""
        numbers = [int(word) for word in self._words if _NUMBER.fullmatch(word)]
        if len(numbers) < len(self._words) or not numbers:
            return 0
        # Fewer numbers than all replicas take are a pattern, which the engine repeats.
        is_repeated = self.replicas > 1 and len(numbers) == self.each
        return max(numbers) + 1 + ((self.replicas - 1) * self.each if is_repeated else 0)

    def beyond(self, count: int) -> str:
        """Why ``count`` devices are too few; empty if they suffice."""
        # A word that is not a number (a UUID, a bus address) gives 0 and is refused below.
        if not self._words or 0 < self.needs <= count:
            return ""
        bad = next((w for w in self._words if not _NUMBER.fullmatch(w) or int(w) >= count), None)
        named = f"names {bad!r}" if bad is not None else f"is repeated by {self.replicas} replicas"
        reserved = f"{count} are reserved, counted from 0" if count else "none is reserved"
        return f"stage {self.stage}: devices {self.devices!r} {named}, and {reserved}"

    @property
    def advice(self) -> str:
        """The next step if there are too few."""
        if self.needs:
            return f"gpus: {self.needs} in the cell, or other devices for the stage"
        return "name devices by number, from 0"

    @property
    def _words(self) -> list[str]:
        if self.devices is None or self.devices == "cpu":
            return []
        listed = self.devices if isinstance(self.devices, list | tuple) else str(self.devices).split(",")
        return [word for item in listed if (word := str(item).strip())]


@dataclass(frozen=True)
class _Setting:
    value: object
    place: Place
    document: Located | None = None


_Stage = dict[str, _Setting]


def read_deploy(text: str, file: Path) -> Located | None:
    """A deploy YAML, without lines if it uses what cells may not use; None if it is invalid."""
    for foreign in (False, True):
        with suppress(LocatedError):
            return parse(text, file, foreign=foreign)
    return None


def deploy_documents(deploy: DeployYaml | None, root: str = "") -> tuple[Located, ...]:
    """The deploy YAML of a cell, pinned or in the change's tree at ``root``.

    That of a change comes after those that it inherits from (``base_config``), as far as they can be read.
    """
    if deploy is None or deploy.origin is None or not root:
        return pinned_documents(deploy)
    path, found = f"{root}/{deploy.path}", dict[str, Located]()
    # Two files may inherit from each other: each is read once.
    while path not in found:
        try:
            document = read_deploy(Path(path).read_text(encoding="utf-8"), Path(path))
        except (OSError, UnicodeDecodeError):
            break
        if document is None or not isinstance(document.data, dict):
            break
        found[path] = document
        base = document.data.get("base_config")
        if not isinstance(base, str):
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), base))
    return tuple(reversed(found.values()))


def pinned_documents(deploy: DeployYaml | None) -> tuple[Located, ...]:
    """The pinned deploy YAML of a cell, if it has been read."""
    if deploy is None or deploy.text is None:
        return ()
    name = f"{deploy.path} at {deploy.at}" if deploy.at else deploy.file or "deploy_yaml"
    document = read_deploy(deploy.text, Path(name))
    return () if document is None else (document,)


def placed_stages(
    documents: Sequence[Located], overrides: Mapping[str, object], platform: str | None = None
) -> tuple[PlacedStage, ...]:
    """The effective devices of each stage that names some.

    ``documents``: a deploy YAML after those it inherits from; ``platform``: its section for this kind of
    machine. Without it, stages that a platform places differently are left out.
    """
    merged: dict[str, _Stage] = {}
    for document in documents:
        for key in _STAGE_LISTS:
            for name, stage in _listed_stages(document, (key,)):
                merged.setdefault(name, {}).update(stage)
    placed = {name: _placing(stage) for name, stage in merged.items()}
    for document in documents:
        sections = _as_mapping(_as_mapping(document.data).get("platforms"))
        for section in sections if platform is None else [platform]:
            for name, stage in _listed_stages(document, ("platforms", str(section), "stages")):
                moved = _placing(stage)
                # Which machine runs the cell is not known here: the stage may need other devices there.
                if platform is None and moved:
                    placed.pop(name, None)
                elif name in placed:
                    placed[name].update(moved)
    for name, override in overrides.items():
        settings = {
            str(key): _Setting(value, ("stage_overrides", name, str(key)))
            for key, value in _as_mapping(override).items()
        }
        placed.setdefault(str(name), {}).update(_placing(settings))

    def positive(stage: _Stage, key: str) -> int:
        value = stage[key].value if key in stage else 1
        return value if isinstance(value, int) and value > 0 else 1

    return tuple(
        PlacedStage(
            stage=name,
            devices=devices.value,
            replicas=positive(stage, "num_replicas"),
            each=math.prod(positive(stage, degree) for degree in _DEGREES),
            field=".".join(map(str, devices.place)),
            file=str(devices.document.file) if devices.document else "",
            line=devices.document.line(devices.place) if devices.document else None,
        )
        for name, stage in placed.items()
        if (devices := stage.get("devices"))
    )


def misplaced_stages(
    documents: Sequence[Located],
    overrides: Mapping[str, object],
    devices: int,
    *,
    may_be_cpu: bool,
    platform: str | None = None,
) -> Iterator[tuple[PlacedStage, str]]:
    """The stages that name a device beyond ``devices``, and why; see :func:`placed_stages`.

    ``may_be_cpu``: the machine has no devices, as far as is known. A stage's number is then that of a memory
    node, and no stage is misplaced.
    """
    if devices or not may_be_cpu:
        for stage in placed_stages(documents, overrides, platform):
            if reason := stage.beyond(devices):
                yield stage, reason


def _listed_stages(document: Located, place: Place) -> Iterator[tuple[str, _Stage]]:
    """The stages in a list, by their id."""
    value = document.data
    for key in place:
        value = _as_mapping(value).get(key)
    for index, item in enumerate(value if isinstance(value, list) else []):
        stage = _as_mapping(item)
        settings = {str(key): _Setting(v, (*place, index, str(key)), document) for key, v in stage.items()}
        yield str(stage.get("stage_id", index)), settings


def _placing(stage: _Stage) -> _Stage:
    """The settings that place a stage, wherever they stand in it; null sets nothing."""
    found: _Stage = {}
    for key in _PLACING:
        settings = [
            _Setting(_as_mapping(outer.value).get(key), (*outer.place, key), outer.document)
            for nested in _NESTED
            if (outer := stage.get(nested))
        ]
        settings += [stage[key]] if key in stage else []
        effective = next((setting for setting in settings if setting.value is not None), None)
        if effective is not None:
            found[key] = effective
    return found


def _as_mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}
