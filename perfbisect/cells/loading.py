"""Cell files -> cells: search, expansion, local folders by content; messages with file, line and field."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from perfbisect.cells.deploy import pinned_documents, placed_stages
from perfbisect.cells.importers.base import ImportedCell
from perfbisect.cells.ladder import LADDERS, LadderError, Rung, expand
from perfbisect.clients import CLIENTS
from perfbisect.common.suggest import hint, nearest
from perfbisect.common.yaml_source import Located, keys_of, load, located, unknown_key
from perfbisect.errors import LocatedError, UsageError
from perfbisect.model.cell import LOCAL, Cell, DeployYaml, apply_variant
from perfbisect.model.metric import parse_metric
from perfbisect.resources import cells_folder
from perfbisect.serving.families import FAMILIES, Endpoint

_PASSED_OVER = frozenset({".git", ".cache", "__pycache__", ".DS_Store"})
"""Names inside a model folder that are not the model."""

_BLOCK = 1 << 20


def content_revision(path: Path) -> str:
    """``sha256:...`` of a file's bytes, or of a folder's files by relative path and content.

    The folder's own name and place, times and permissions do not matter; symbolic links are followed.

    :raises UsageError: it cannot be read, or the folder holds no file.
    """
    try:
        if path.is_file():
            return LOCAL + _file(path)
        files = sorted(
            (file.relative_to(path).as_posix(), file)
            for file in path.rglob("*")
            if file.is_file() and not _PASSED_OVER.intersection(file.relative_to(path).parts)
        )
        if not files:
            raise UsageError(f"{path} holds no file", where=path)
        whole = hashlib.sha256()
        for name, file in files:
            whole.update(f"{name}\0{_file(file)}\n".encode())
        return LOCAL + whole.hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error}", where=path) from None


def _file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


ReadAt = Callable[[str, str], str]
"""(commit, path) -> the text of that file in the repository under test."""

INTERNAL = ("variant", "before_variant")
"""Fields that only ``apply_variant`` sets."""

DATASET_KEYS = (
    *(
        "random_input_len",
        "random_output_len",
        "random_range_ratio",
        "random_prefix_len",
        "random_batch_size",
    ),
    *("sharegpt_output_len", "custom_output_len", "hf_output_len", "hf_split", "hf_subset"),
    *("prefix_repetition_prefix_len", "prefix_repetition_suffix_len"),
    *("prefix_repetition_num_prefixes", "prefix_repetition_output_len"),
)
"""Dataset arguments that may stand at the top of a cell, as in vLLM-Omni's performance specifications."""

SERVER_METRICS = ("prefix_cache_hit_rate",)
"""Metrics that the server is asked for, not the client."""

_HERE = Path("cells")
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class CellFile:
    """A cell file by the name under which it is found; ``shipped`` with perfbisect or the user's own."""

    name: str
    path: Path
    shipped: bool


def list_cells() -> tuple[CellFile, ...]:
    """Every cell file that has a name: those in ``./cells``, then the shipped ones that they do not hide."""
    found: dict[str, CellFile] = {}
    shipped = cells_folder()
    for folder in (_HERE, shipped):
        for path in sorted(folder.glob("*.yaml")) + sorted(folder.glob("*.yml")):
            if path.stem not in found:
                found[path.stem] = CellFile(path.stem, path, folder.resolve() == shipped.resolve())
    return tuple(found[name] for name in sorted(found))


def known_cells(but: Iterable[Path] = ()) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Every cell that has a name, and a warning for each file of which none can be read, with what is wrong
    in it: one bad file is nothing to whoever asks for another cell. Files of ``but`` are left out."""
    others = {path.resolve() for path in but}
    cells: list[Cell] = []
    warnings: list[str] = []
    for file in list_cells():
        if file.path.resolve() in others:
            continue
        try:
            cells += load_cells(file.path)
        except UsageError as error:
            warnings.append(f"left out: {error.where}: {error.message}")
    return tuple(cells), tuple(warnings)


def load_cell(path_or_name: str | Path, *, read_at: ReadAt | None = None) -> Cell:
    """The one cell of a file, or the one that ``NAME@c64-n512`` names.

    :raises UsageError: as :func:`load_cells`, or the file has several; they are listed.
    """
    cells = load_cells(path_or_name, read_at=read_at)
    if len(cells) > 1:
        raise UsageError(
            f"{path_or_name} holds {len(cells)} cells and one is needed: "
            f"{', '.join(cell.name for cell in cells)}",
            next_step=f"name one of them, such as {cells[0].name}",
        )
    return cells[0]


def load_cells(path_or_name: str | Path, *, read_at: ReadAt | None = None) -> tuple[Cell, ...]:
    """All cells of a file: of a path, or of a name that stands in ``./cells`` or among the shipped cells.

    ``@c64-n512`` after it picks one of a ladder. ``read_at`` reads a deploy YAML that is pinned to a commit;
    without it such a cell loads, but has no digest.

    :raises UsageError: no such file or name (the nearest are named).
    :raises LocatedError: something in the file is wrong: file, line, field, what is allowed.
    """
    path, wanted = _find(path_or_name)
    document = load(path)
    raw = _prepared(document)
    try:
        rungs = expand(raw)
    except LadderError as error:
        raise LocatedError(
            str(error), file=path, line=document.line((error.field,)), field=error.field
        ) from None
    name = raw.get("name", path.stem)
    cells = []
    for rung in rungs:
        full = f"{name}{rung.suffix}"
        if wanted and rung.suffix != wanted:
            continue
        cells.append(_cell(document, rung, full, read_at))
    if not cells:
        has = [f"{name}{rung.suffix}" for rung in rungs]
        near = nearest(f"{name}{wanted}", has, 0.0)
        raise UsageError(
            f"{path} has no cell {wanted}; it has: {', '.join(has)}",
            where=path,
            next_step=f"for example: {near[0]}" if near else None,
        )
    return tuple(cells)


def _find(path_or_name: str | Path) -> tuple[Path, str]:
    text = str(path_or_name)
    bare, at, suffix = text.rpartition("@")
    for name, wanted in ((text, ""), *([(bare, at + suffix)] if bare else [])):
        path = Path(name)
        if path.is_file():
            return path, wanted
        for known in list_cells():
            if known.name == name:
                return known.path, wanted
    name = bare or text
    if "/" in text or text.endswith(_SUFFIXES):
        raise UsageError(f"there is no cell file {text}", next_step="perfbisect cells list")
    names = [known.name for known in list_cells()]
    raise UsageError(
        f"there is no cell named {text!r}{hint(name, names, 0.4)}; known: {', '.join(names) or 'none'}",
        next_step="perfbisect cells list",
    )


def _prepared(document: Located) -> dict[str, object]:
    """The document with dataset arguments from the top in their place, and nothing that no file may set."""
    raw = dict(document.mapping())
    for name in INTERNAL:
        if name in raw:
            message, allowed = unknown_key(name, allowed_keys())
            raise _wrong(document, (name,), message, allowed)
    top = {name: raw.pop(name) for name in DATASET_KEYS if name in raw}
    if top:
        inner = raw.get("dataset_args")
        if inner is not None and not isinstance(inner, Mapping):
            raise _wrong(
                document, ("dataset_args",), "expected a mapping where dataset arguments stand at the top too"
            )
        for name in top:
            if inner and {name, name.replace("_", "-")} & set(inner):
                raise _wrong(document, (name,), "stands in dataset_args as well")
        raw["dataset_args"] = {**(inner or {}), **top}
    return raw


def allowed_keys() -> list[str]:
    """Every key that a cell file may have at its top."""
    return [key for key in (*keys_of(Cell), *DATASET_KEYS) if key not in INTERNAL]


def _cell(document: Located, rung: Rung, name: str, read_at: ReadAt | None) -> Cell:
    raw = {**rung.document, "name": name}
    family = raw.get("family")
    if isinstance(family, str) and family not in FAMILIES:
        raise _wrong(document, ("family",), f"there is no family {family!r}", ", ".join(FAMILIES))
    if isinstance(family, str):
        raw.setdefault("headline", FAMILIES[family].headline)
        raw.setdefault("guards", list(FAMILIES[family].guards))
    try:
        cell = Cell.model_validate(raw)
    except ValidationError as error:
        raise located(error, document, Cell, index=rung.place, extra=DATASET_KEYS, hidden=INTERNAL) from None
    if cell.client.name not in CLIENTS:
        raise _wrong(document, ("client",), f"there is no client {cell.client.name!r}", ", ".join(CLIENTS))
    cell = _with_deploy(_with_content(cell, document), document, read_at)
    _check_stages(cell, document)
    _accepted(cell, document)
    return cell


def _with_content(cell: Cell, document: Located) -> Cell:
    """Local folders and files by their absolute path, and their content as the revision."""
    changed: dict[str, object] = {}
    pins: dict[str, str | None] = {}
    for field, pin in (("model", "model"), ("tokenizer", "tokenizer"), ("dataset_path", "dataset")):
        value = getattr(cell, field)
        path = None if value is None else _local(value, document.file, maybe=field == "dataset_path")
        if path is None:
            continue
        if not path.exists():
            raise _wrong(
                document, (field,), f"there is no {path}", "a folder relative to this file, or a hub's name"
            )
        found, given = content_revision(path), getattr(cell.revision, pin)
        if given is not None and given != found:
            raise _wrong(
                document,
                ("revision", pin),
                f"is {given!r}, but {path} holds {found}",
                f"{LOCAL}..., or leave it out",
            )
        changed[field], pins[pin] = str(path), found
    if cell.reference is not None:
        path = (document.file.parent / Path(cell.reference.image).expanduser()).resolve()
        if not path.is_file():
            raise _wrong(
                document, ("reference", "image"), f"there is no {path}", "a file relative to this one"
            )
        found, given = content_revision(path), cell.reference.content
        if given not in (None, found):
            place = ("reference", "content")
            raise _wrong(document, place, f"is {given!r}, but {path} holds {found}", "leave it out")
        changed["reference"] = cell.reference.model_copy(update={"image": str(path), "content": found})
    if not changed:
        return cell
    return cell.model_copy(update={**changed, "revision": cell.revision.model_copy(update=pins)})


def _local(value: str, file: Path, *, maybe: bool) -> Path | None:
    """The path that a value means: written as one, or (a data set) a file beside the cell; else None."""
    if value.startswith(("./", "../", "/", "~")):
        return (file.parent / Path(value).expanduser()).resolve()
    beside = file.parent / value
    return beside.resolve() if maybe and beside.exists() else None


def _with_deploy(cell: Cell, document: Located, read_at: ReadAt | None) -> Cell:
    changed: dict[str, object] = {}
    if cell.deploy_yaml is not None:
        changed["deploy_yaml"] = _read(cell.deploy_yaml, document, ("deploy_yaml",), read_at)
    variants = {
        name: variant.model_copy(
            update={
                "deploy_yaml": _read(
                    variant.deploy_yaml, document, ("variants", name, "deploy_yaml"), read_at
                )
            }
        )
        for name, variant in cell.variants.items()
        if variant.deploy_yaml is not None
    }
    if variants:
        changed["variants"] = {**cell.variants, **variants}
    return cell.model_copy(update=changed) if changed else cell


def _read(
    deploy: DeployYaml, document: Located, place: tuple[str, ...], read_at: ReadAt | None
) -> DeployYaml:
    if deploy.file is not None:
        path = (document.file.parent / deploy.file).resolve()
        try:
            return deploy.model_copy(update={"file": str(path), "text": path.read_text(encoding="utf-8")})
        except (OSError, UnicodeDecodeError) as error:
            raise _wrong(document, (*place, "file"), f"cannot read {path}: {error}") from None
    if deploy.at is not None and deploy.path is not None and read_at is not None:
        return deploy.model_copy(update={"text": read_at(deploy.at, deploy.path)})
    return deploy


def _check_stages(cell: Cell, document: Located) -> None:
    """Refuse stages, of the cell or of a variant, that name devices which the cell does not reserve."""
    for variant in ("", *cell.variants):
        served = apply_variant(cell, variant) if variant else cell
        for stage in placed_stages(pinned_documents(served.deploy_yaml), served.stage_overrides):
            why = stage.beyond(cell.gpus)
            if not why:
                continue
            above = ("variants", variant) if variant else ()
            place = (*above, *(("deploy_yaml",) if stage.file else stage.field.split(".")))
            file, line = document.file, document.line(place)
            if served.deploy_yaml is not None and stage.file == served.deploy_yaml.file:
                file, line = Path(stage.file), stage.line
            raise LocatedError(why, file=file, line=line, field=stage.field, next_step=stage.advice)


def _accepted(cell: Cell, document: Located) -> None:
    """Ask the family and the client now, before anything is built, whether they can do what the cell says."""
    client, endpoint = CLIENTS[cell.client.name], Endpoint(port=1, model_name="m")
    for field, names in (("headline", (cell.headline,)), ("guards", cell.guards)):
        for metric in map(parse_metric, names):
            if field == "headline" and metric.metric.guard:
                raise _wrong(document, (field,), f"{metric} is watched, not judged: make it a guard")
            if field == "guards" and metric.name in SERVER_METRICS:
                continue
            try:
                client.check_metric(cell, metric)
            except UsageError as error:
                raise _wrong(document, (field,), error.message) from None
    try:
        if FAMILIES[cell.family].server(cell, endpoint).image_check is None and cell.reference is not None:
            raise UsageError(
                f"cell {cell.name}: reference: family {cell.family} makes no images to compare",
                field="reference",
            )
        if cell.deploy_yaml is None or not cell.deploy_yaml.at or cell.deploy_yaml.text is not None:
            client.command(cell, endpoint, seed=0, result=Path("result.json"), metadata={})
    except UsageError as error:
        place = () if error.field is None else (error.field,)
        raise _wrong(document, place, error.message) from None


def _wrong(
    document: Located, place: tuple[str, ...], message: str, allowed: str | None = None
) -> LocatedError:
    return LocatedError(
        message, file=document.file, line=document.line(place), field=".".join(place) or None, allowed=allowed
    )


def write_cell(folder: Path, imported: ImportedCell) -> Path:
    """Writes a cell file with what lies beside it; returns its path.

    :raises OSError: the folder cannot be written.
    """
    for name, text in imported.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / f"{imported.stem}.yaml"
    text = yaml.safe_dump(dict(imported.document), sort_keys=False, allow_unicode=True, width=100)
    path.write_text(text, encoding="utf-8")
    return path


MEANING = {
    "name": "what it is called; by default the name of the file",
    "family": "how it is served: text",
    "description": "what it is for, in a line",
    "model": "a hub's name, or a folder relative to this file (./ or ../ in front)",
    "tokenizer": "as model; by default the model's",
    "revision": "state of model, tokenizer and dataset: a hub's commit or tag; a local folder's content",
    "task": "what the model does, in the words of the engine",
    "deploy_yaml": "of families with stages: {text}, {file}, {at, path}; a bare path is the change's own",
    "backend": "the client's way to ask: openai, openai-chat, ...",
    "endpoint": "the path that is asked: /v1/completions",
    "dataset_name": "as the client knows it: random, prefix_repetition, sharegpt, hf, custom, ...",
    "dataset_path": "a hub's name, or a file relative to this one",
    "dataset_args": "the client's options for the data set: lengths, ranges, splits",
    "sampling": "sampling of every request; greedy by default for text, else the deploy YAML's",
    "ignore_eos": "whether requests run to the length that was asked for",
    "extra_body": "what is added to the body of every request",
    "num_prompts": "requests of a run; may be a list",
    "num_warmups": "requests that the client sends before a run and does not count",
    "discard_prompts": "requests of the run that each launch discards; by default as many as in a run",
    "max_concurrency": "requests under way at most; may be a list",
    "request_rate": "requests per second; inf, the default, is all at once; may be a list",
    "burstiness": "1 is a Poisson process, less is burstier",
    "percentile_metrics": "metrics of which the client reports percentiles",
    "metric_percentiles": "which percentiles, 0 to 100",
    "stage_overrides": "of families with stages: overrides by stage",
    "serve_args": "options of the server, by name or as tokens",
    "env": "environment variables of the server",
    "headline": "the metric that is judged: tpot, ttft:p99, output_throughput, ...",
    "guards": "metrics that must not move while the headline does",
    "reference": "an image that each launch makes again, for image_distance: image (a file), prompt, body",
    "client": "the load generator: its name, or name, args and env",
    "gpus": "devices to reserve; 0 for none",
    "ready_timeout": "seconds that a start may take",
    "seed": "seed of the first run; run k uses seed + k",
    "known_baselines": "what was measured elsewhere; never compared with",
    "variants": "server-side overrides by name: serve_args, env, deploy_yaml, stage_overrides",
}
"""What each key of a cell file says."""


def cell_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a cell file: what may be written, paired lists and short forms included."""
    schema = Cell.model_json_schema(mode="validation")
    properties: dict[str, Any] = schema["properties"]
    for name in INTERNAL:
        del properties[name]
    for name, text in MEANING.items():
        properties[name]["description"] = text
        properties[name].pop("title", None)
    for name in LADDERS:
        single = {
            key: item for key, item in properties[name].items() if key not in ("description", "default")
        }
        kept = {key: item for key, item in properties[name].items() if key in ("description", "default")}
        properties[name] = {"anyOf": [single, {"type": "array", "items": single, "minItems": 1}], **kept}
    for name in ("client", "revision", "deploy_yaml"):
        form = properties[name]
        forms = form.pop("anyOf", None) or [{"$ref": form.pop("$ref")}]
        properties[name] = {"anyOf": [*forms, {"type": "string"}], **form}
    properties["request_rate"]["default"] = "inf"
    for name in DATASET_KEYS:
        properties[name] = {"type": ["number", "string"], "description": "the same as in dataset_args"}
    schema["required"] = [name for name in schema["required"] if name != "name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "perfbisect cell"}
