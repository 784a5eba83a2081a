"""Which devices the stages of a server name: in its deploy YAML, in what that inherits, and in overrides."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from perfbisect.common.yaml_source import Located, Place, parse
from perfbisect.errors import LocatedError
from perfbisect.model.cell import Cell, DeployYaml
from perfbisect.model.change import Change

DeployText = Callable[[str, str], str | None]
"""(commit, path) -> what the file there is, None where there is none: for deploy YAML of the change."""


def deploy_changes(cell: Cell, changes: Sequence[Change], deploy: DeployText | None) -> frozenset[str]:
    """Ids of changes whose deploy YAML, taken from the change, is not what it was one change before."""
    source = cell.deploy_yaml
    if source is None or source.origin is None or source.path is None or deploy is None:
        return frozenset()
    texts = [deploy(change.source, source.path) if change.kind == "commit" else None for change in changes]
    return frozenset(
        change.id
        for change, here, before in zip(changes[1:], texts[1:], texts[:-1], strict=True)
        if here != before
    )


_DEGREES = ("tensor_parallel_size", "pipeline_parallel_size")
_KEYS = ("devices", "num_replicas", *_DEGREES)
_NESTED = ("runtime", "engine_args")
"""Mappings inside a stage that hold the same keys, and win over those beside them."""


@dataclass(frozen=True)
class PlacedStage:
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


def pinned_documents(deploy: DeployYaml | None) -> tuple[Located, ...]:
    """The deploy YAML that a cell brings with it, where it was read."""
    if deploy is None or deploy.text is None:
        return ()
    named = f"{deploy.path} at {deploy.at}" if deploy.at else deploy.file or "deploy_yaml"
    document = read_deploy(deploy.text, Path(named))
    return () if document is None else (document,)


def inherited_documents(path: str, read: Callable[[str], str | None]) -> tuple[Located, ...]:
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


def placed_stages(
    documents: Sequence[Located], overrides: Mapping[str, object], platform: str | None = None
) -> tuple[PlacedStage, ...]:
    """What each stage says in the end; stages that name no devices are left out.

    ``documents``: a deploy YAML after those it inherits from; ``platform``: the section of it that holds on
    this kind of machine. None: not known, so stages that any platform places in another way are left out.
    """
    stages: dict[str, _Stage] = {}
    for document in documents:
        for key in ("stages", "stage_args"):
            for name, stage in _stages_stages(document, (key,)):
                stages.setdefault(name, {}).update(stage)
    final = {name: _final(stage) for name, stage in stages.items()}
    for document in documents:
        sections = document.data.get("platforms") if isinstance(document.data, dict) else None
        names = sections if platform is None and isinstance(sections, dict) else [platform]
        for section in names:
            for name, stage in _stages_stages(document, ("platforms", str(section), "stages")):
                moved = _final(stage)
                if platform is None and moved:
                    final.pop(name, None)
                elif name in final:
                    final[name].update(moved)
    for name, over in overrides.items():
        said = {
            str(key): _Said(value, ("stage_overrides", name, str(key)))
            for key, value in _stages_mapping(over).items()
        }
        final.setdefault(str(name), {}).update(_final(said))
    return tuple(_placed(name, stage) for name, stage in final.items() if "devices" in stage)


def _stages_stages(document: Located, place: Place) -> Iterator[tuple[str, _Stage]]:
    """The stages that are listed at a place, by their id."""
    value = document.data
    for key in place:
        value = _stages_mapping(value).get(key)
    for index, stage in enumerate(value if isinstance(value, list) else []):
        here = _stages_mapping(stage)
        said = {str(key): _Said(item, (*place, index, str(key)), document) for key, item in here.items()}
        yield str(here.get("stage_id", index)), said


def _final(stage: _Stage) -> _Stage:
    """The keys that count, wherever in the stage they stand; null says nothing."""
    found: _Stage = {}
    for key in _KEYS:
        for nested in _NESTED:
            outer = stage.get(nested)
            inner = _stages_mapping(outer.value).get(key) if outer else None
            if outer is not None and inner is not None:
                found[key] = _Said(inner, (*outer.place, key), outer.document)
                break
        else:
            plain = stage.get(key)
            if plain is not None and plain.value is not None:
                found[key] = plain
    return found


def _placed(name: str, stage: _Stage) -> PlacedStage:
    said = stage["devices"]
    each = 1
    for degree in _DEGREES:
        each *= _count(stage.get(degree))
    file = said.document.file if said.document else ""
    return PlacedStage(
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


def _stages_mapping(value: object) -> Mapping[object, object]:
    return value if isinstance(value, Mapping) else {}


_STAGES = ("stages", "stage_args")


def apply_edits(text: str, update: object, delete: object) -> str:
    """The deploy YAML with the changes made, written out again.

    :raises ValueError: the text is no mapping, or a change is none or names what is not there.
    """
    document = _loaded(text)
    for path, value in _mapping(delete):
        if path in _STAGES:
            for stage, paths in _by_stage(document, value):
                for inner in paths if isinstance(paths, list) else ():
                    _delete(stage, str(inner))
        else:
            _delete(document, path)
    for path, value in _mapping(update):
        if path in _STAGES:
            for stage, values in _by_stage(document, value):
                for inner, new in _mapping(values):
                    _set(stage, inner, new)
        else:
            _set(document, path, value)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def check_mapping(text: str) -> None:
    """:raises ValueError: the text is no deploy YAML: no YAML, or no mapping."""
    _loaded(text)


def _loaded(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ValueError("is no mapping")
    return document


def _mapping(changes: object) -> Iterator[tuple[str, Any]]:
    if not isinstance(changes, Mapping):
        raise ValueError(f"is to be changed by {changes!r}, which is no mapping")
    yield from ((str(name), value) for name, value in changes.items())


def _stages(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    lists = [found for name in _STAGES if isinstance(found := document.get(name), list)]
    return [stage for stages in lists for stage in stages if isinstance(stage, dict)]


def _by_stage(document: Mapping[str, Any], changes: object) -> Iterator[tuple[dict[str, Any], Any]]:
    stages = {str(stage.get("stage_id")): stage for stage in _stages(document)}
    for name, change in _mapping(changes):
        if name not in stages:
            raise ValueError(f"has no stage {name}, only {', '.join(stages) or 'none'}")
        yield stages[name], change


def _inner(document: dict[str, Any], path: str, *, make: bool) -> tuple[dict[str, Any], str]:
    """The mapping in which a path ends, and its last word."""
    *above, last = path.split(".")
    current: Any = document
    for word in above:
        current = current.setdefault(word, {}) if make else current.get(word)
        if not isinstance(current, dict):
            raise ValueError(f"has no mapping at {path}")
    return current, last


def _set(document: dict[str, Any], path: str, value: object) -> None:
    inner, last = _inner(document, path, make=True)
    inner[last] = value


def _delete(document: dict[str, Any], path: str) -> None:
    inner, last = _inner(document, path, make=False)
    inner.pop(last, None)
