"""Which devices the stages of a server name: in its deploy YAML, in what that inherits, and in overrides."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from perfbisect.config.yaml_lines import Located, Place, parse
from perfbisect.core.cell_parts import DeployYaml
from perfbisect.errors import LocatedError

_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size")
_KEYS = ("devices", "num_replicas", *_DEGREES)
_NESTED = ("runtime", "engine_args")
"""Mappings inside a stage that hold the same keys, and win over those beside them."""


@dataclass(frozen=True)
class Placed:
    """The devices that a stage names, as they are written; their numbers count within what the engine sees.

    ``replicas`` of the stage have ``each`` devices. ``field``, ``file``, ``line``: where it is said; no file
    where the cell says it among its stage overrides.
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
        """How many devices there must be for it; 0 where it names something else than numbers."""
        numbers = [int(word) for word in self._words if word.isdigit()]
        if len(numbers) < len(self._words) or not numbers:
            return 0
        # Fewer numbers than the replicas take together are a pattern, which the engine repeats further on.
        repeated = self.replicas > 1 and len(numbers) == self.each
        return max(numbers) + 1 + ((self.replicas - 1) * self.each if repeated else 0)

    def beyond(self, count: int) -> str:
        """What of it ``count`` devices do not have, in words; empty where they have it all."""
        if not self._words or 0 < self.needs <= count:
            return ""
        bad = next((w for w in self._words if not w.isdigit() or int(w) >= count), None)
        named = f"names {bad!r}" if bad is not None else f"is repeated by {self.replicas} replicas"
        has = f"{count} are reserved, counted from 0" if count else "none is reserved"
        return f"stage {self.stage}: devices {self.devices!r} {named}, and {has}"

    @property
    def advice(self) -> str:
        """What comes next, where there are too few."""
        if self.needs:
            return f"gpus: {self.needs} in the cell, or other devices for the stage"
        return "name devices by number, from 0"

    @property
    def _words(self) -> list[str]:
        if self.devices is None or self.devices == "cpu":
            return []
        listed = self.devices if isinstance(self.devices, list | tuple) else str(self.devices).split(",")
        return [text for one in listed if (text := str(one).strip())]


@dataclass(frozen=True)
class _Said:
    value: object
    place: Place
    document: Located | None = None


_Stage = dict[str, _Said]


def read_deploy(text: str, file: Path) -> Located | None:
    """A deploy YAML: without lines where it is written as no cell may be, None where no engine reads it."""
    try:
        return parse(text, file)
    except LocatedError:
        pass
    try:
        return Located(file, yaml.safe_load(text))
    except yaml.YAMLError:
        return None


def pinned(deploy: DeployYaml | None) -> tuple[Located, ...]:
    """The deploy YAML that a cell brings with it, where it was read."""
    if deploy is None or deploy.text is None:
        return ()
    named = f"{deploy.path} at {deploy.at}" if deploy.at else deploy.file or "deploy_yaml"
    document = read_deploy(deploy.text, Path(named))
    return () if document is None else (document,)


def inherited(path: str, read: Callable[[str], str | None]) -> tuple[Located, ...]:
    """A deploy YAML after those that it inherits from (``base_config``), as far as ``read`` has them."""
    found: list[Located] = []
    seen: set[str] = set()
    while path not in seen:
        seen.add(path)
        text = read(path)
        document = read_deploy(text, Path(path)) if text is not None else None
        if document is None or not isinstance(document.data, dict):
            break
        found.insert(0, document)
        base = document.data.get("base_config")
        if not isinstance(base, str):
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), base))
    return tuple(found)


def placed(
    documents: Sequence[Located], overrides: Mapping[str, object], platform: str | None = None
) -> tuple[Placed, ...]:
    """What each stage says in the end; stages that name no devices are left out.

    ``documents``: a deploy YAML after those it inherits from; ``platform``: the section of it that holds on
    this kind of machine. None: not known, so stages that any platform places in another way are left out.
    """
    stages: dict[str, _Stage] = {}
    for document in documents:
        for key in ("stages", "stage_args"):
            for name, stage in _stages(document, (key,)):
                stages.setdefault(name, {}).update(stage)
    final = {name: _final(stage) for name, stage in stages.items()}
    for document in documents:
        sections = document.data.get("platforms") if isinstance(document.data, dict) else None
        names = sections if platform is None and isinstance(sections, dict) else [platform]
        for section in names:
            for name, stage in _stages(document, ("platforms", str(section), "stages")):
                moved = _final(stage)
                if platform is None and moved:
                    final.pop(name, None)
                elif name in final:
                    final[name].update(moved)
    for name, over in overrides.items():
        said = {
            str(key): _Said(value, ("stage_overrides", name, str(key)))
            for key, value in _mapping(over).items()
        }
        final.setdefault(str(name), {}).update(_final(said))
    return tuple(_placed(name, stage) for name, stage in final.items() if "devices" in stage)


def _stages(document: Located, place: Place) -> Iterator[tuple[str, _Stage]]:
    """The stages that are listed at a place, by their id."""
    value = document.data
    for key in place:
        value = _mapping(value).get(key)
    for index, stage in enumerate(value if isinstance(value, list) else []):
        here = _mapping(stage)
        said = {str(key): _Said(item, (*place, index, str(key)), document) for key, item in here.items()}
        yield str(here.get("stage_id", index)), said


def _final(stage: _Stage) -> _Stage:
    """The keys that count, wherever in the stage they stand; null says nothing."""
    found: _Stage = {}
    for key in _KEYS:
        for nested in _NESTED:
            outer = stage.get(nested)
            inner = _mapping(outer.value).get(key) if outer else None
            if outer is not None and inner is not None:
                found[key] = _Said(inner, (*outer.place, key), outer.document)
                break
        else:
            plain = stage.get(key)
            if plain is not None and plain.value is not None:
                found[key] = plain
    return found


def _placed(name: str, stage: _Stage) -> Placed:
    said = stage["devices"]
    each = 1
    for degree in _DEGREES:
        each *= _count(stage.get(degree))
    file = said.document.file if said.document else ""
    return Placed(
        stage=name,
        devices=said.value,
        replicas=_count(stage.get("num_replicas")),
        each=each,
        field=".".join(map(str, said.place)),
        file=str(file),
        line=said.document.line(said.place) if said.document else None,
    )


def _count(said: _Said | None) -> int:
    value = said.value if said else 1
    return value if isinstance(value, int) and value > 0 else 1


def _mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}
