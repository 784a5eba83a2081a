"""Cell files -> cells: search, paired lists, local files by content; errors with file, line and field."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perfbisect.cells.content import content_revision
from perfbisect.cells.deploy import deploy_documents, misplaced_stages, pinned_documents
from perfbisect.clients import CLIENTS
from perfbisect.clients.multi_turn_bench import DATASET
from perfbisect.common.secret_references import literal_secrets, secret_refused
from perfbisect.common.text import hint, nearest
from perfbisect.common.yaml_source import (
    Located,
    Place,
    collecting,
    join_errors,
    keys_of,
    load,
    located_errors,
    read_text,
    unknown_key,
)
from perfbisect.errors import LocatedError, UsageError
from perfbisect.model.cell import LOCAL, SERVER, Cell, DeployYaml, apply_variant
from perfbisect.model.metric import parse_metric
from perfbisect.resources import cells_folder
from perfbisect.serving.families import FAMILIES, Endpoint

ReadAt = Callable[[str, str], str]
"""(commit, path) -> the text of that file in the repository under test."""

INTERNAL = ("variant", "before_variant")
"""Fields that only ``apply_variant`` sets."""

DATASET_KEYS = (
    *("random_input_len", "random_output_len", "random_range_ratio", "random_prefix_len"),
    *("random_batch_size", "sharegpt_output_len", "custom_output_len", "hf_output_len"),
    *("hf_split", "hf_subset", "prefix_repetition_prefix_len", "prefix_repetition_suffix_len"),
    *("prefix_repetition_num_prefixes", "prefix_repetition_output_len"),
)
"""Dataset arguments that may be at the top of a cell, as in vLLM-Omni's performance specifications."""

LADDERS = ("num_prompts", "max_concurrency", "request_rate", "num_warmups")
"""Fields that may be lists: paired by position; a single value applies to every position."""

"""Metrics that the server reports, not the client."""

_OWN_CELLS = Path("cells")
_SUFFIXES = (".yaml", ".yml")
_READ_FROM_FILES = (DATASET, "sharegpt", "custom", "custom_mm", "sonnet", "burstgpt", "spec_bench")
"""Data sets that vLLM's clients read from a file; they look for none of them on a hub."""


def list_cells() -> dict[str, Path]:
    """All cell files by name: those in ``./cells``, and shipped ones with other names."""
    found: dict[str, Path] = {}
    # The user's own cells come first: the name of a cell means the first file that has it.
    for folder in (_OWN_CELLS, cells_folder()):
        for path in (path for suffix in _SUFFIXES for path in sorted(folder.glob(f"*{suffix}"))):
            found.setdefault(path.stem, path)
    return {name: found[name] for name in sorted(found)}


def known_cells(but: Iterable[Path] = ()) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """All named cells except those of the files ``but``, and a warning for each file that is invalid."""
    excluded = set(map(os.path.realpath, but))
    cells: list[Cell] = []
    warnings: list[str] = []
    for file in list_cells().values():
        if os.path.realpath(file) in excluded:
            continue
        try:
            cells += load_cells(file)
        except UsageError as error:
            warnings.append(f"left out: {error.where or file}: {error.message.splitlines()[0]}")
    return tuple(cells), tuple(warnings)


def load_cell(path_or_name: str | Path, *, read_at: ReadAt | None = None) -> Cell:
    """The one cell of a file, or the one of ``NAME@c64-n512``. :raises UsageError: as :func:`load_cells`."""
    cells = load_cells(path_or_name, read_at=read_at)
    if len(cells) > 1:
        raise UsageError(
            f"{path_or_name} holds {len(cells)} cells and one is needed: "
            f"{', '.join(cell.name for cell in cells)}",
            next_step=f"name one of them, such as {cells[0].name}",
        )
    return cells[0]


def load_cells(
    path_or_name: str | Path, *, read_at: ReadAt | None = None, incomplete: bool = False
) -> tuple[Cell, ...]:
    """All cells of a file, by path or name; ``@c64-n512`` after it selects one of a ladder.

    ``read_at`` reads a deploy YAML that is pinned to a commit; without it such a cell has no digest.
    ``incomplete``: the file of a data set may still be missing.

    Raises:
        UsageError: no such file or name.
        LocatedError: the file is invalid.
    """
    path, wanted = _find(path_or_name)
    document = load(path)
    raw, errors = _prepare(document)
    try:
        rungs = pair_lists(document, raw)
    except LocatedError as error:
        # Checked with the first values all the same, so that one run shows every error of the file.
        firsts = {name: value[0] for name in LADDERS if isinstance(value := raw.get(name), list) and value}
        _, found = _cell(
            document, {**raw, **firsts, "name": str(raw.get("name", path.stem))}, None, read_at, incomplete
        )
        raise join_errors([*found, *errors, error]) from None
    name = raw.get("name", path.stem)
    cells: list[Cell] = []
    for index, (suffix, rung) in enumerate(rungs.items()):
        if not wanted or suffix == wanted:
            fields = {**rung, "name": f"{name}{suffix}"}
            cell, found = _cell(document, fields, index if suffix else None, read_at, incomplete)
            if errors or found or cell is None:
                raise join_errors([*errors, *found])
            cells.append(cell)
    if not cells:
        names = [f"{name}{suffix}" for suffix in rungs]
        near = nearest(f"{name}{wanted}", names, 0.0)
        raise UsageError(
            f"{path} has no cell {wanted}; it has: {', '.join(names)}",
            where=path,
            next_step=f"for example: {near[0]}" if near else None,
        )
    return tuple(cells)


def _find(path_or_name: str | Path) -> tuple[Path, str]:
    """The path, and the suffix of the wanted cell or an empty text."""
    text = str(path_or_name)
    known = list_cells()
    bare, at, suffix = text.rpartition("@")
    # The whole text first: a file may have an @ in its name.
    for name, wanted in ((text, ""), *([(bare, at + suffix)] if bare else [])):
        with suppress(OSError, ValueError):  # a name that no file can have
            if Path(name).is_file():
                return Path(name), wanted
        if name in known:
            return known[name], wanted
    if "/" in text or text.endswith(_SUFFIXES):
        raise UsageError(f"there is no cell file {text}", next_step="perfbisect cells list")
    near = hint(bare or text, known, 0.4)
    raise UsageError(
        f"there is no cell named {text!r}{near}; known: {', '.join(known) or 'none'}",
        next_step="perfbisect cells list",
    )


def _prepare(document: Located) -> tuple[dict[str, object], list[LocatedError]]:
    """The document with its top-level dataset arguments in ``dataset_args``, and what is wrong so far."""
    raw, errors = dict(document.mapping()), []
    for name in INTERNAL:
        if name in raw:
            # Removed, so that the rest of the cell is checked all the same.
            del raw[name]
            allowed = [key for key in (*keys_of(Cell), *DATASET_KEYS) if key not in INTERNAL]
            errors.append(document.error((name,), *unknown_key(name, allowed)))
    top = {name: raw.pop(name) for name in DATASET_KEYS if name in raw}
    inner = raw.get("dataset_args") or {}
    if not isinstance(inner, Mapping):
        message = "expected a mapping where dataset arguments stand at the top too"
        return raw, [*errors, *([document.error(("dataset_args",), message)] if top else [])]
    if top:
        twice = [name for name in top if name in inner or name.replace("_", "-") in inner]
        errors += [document.error((name,), "stands in dataset_args as well") for name in twice]
        raw["dataset_args"] = {**{name: top[name] for name in top if name not in twice}, **inner}
    return raw, errors


def pair_lists(document: Located, raw: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The fields of each cell of a file by the suffix of its name: ``@c64-n512``, empty without lists.

    Raises:
        LocatedError: unequal or empty lists, or two cells of one name.
    """
    lists = {name: value for name in LADDERS if isinstance(value := raw.get(name), list)}
    if not lists:
        return {"": dict(raw)}
    first, length = next((name, len(values)) for name, values in lists.items())
    for name, values in lists.items():
        if not values:
            raise document.error((name,), "is an empty list")
        if len(values) != length:
            lengths = f"has {len(values)} values where {first} has {length}"
            raise document.error((name,), f"{lengths}: paired lists are of one length")
    rungs: dict[str, dict[str, object]] = {}
    for index in range(length):
        rung = {**raw, **{name: values[index] for name, values in lists.items()}}
        # The name says the load, not a position: results keep their cell when a list grows.
        users, rate = rung.get("max_concurrency"), rung.get("request_rate")
        parts = [f"c{_number(users)}"] if users is not None else []
        if isinstance(rate, (int, float)) and rate != float("inf"):
            parts.append(f"r{float(rate)}")
        elif not parts:
            parts.append("rinf")
        suffix = "@" + "-".join([*parts, f"n{_number(rung.get('num_prompts'))}"])
        if suffix in rungs:
            raise document.error((first,), f"gives two cells the name {suffix}")
        rungs[suffix] = rung
    return rungs


def _number(value: object) -> str:
    """A number of a load in a name; an invalid value, which validation rejects later, is ``x``."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int) else "x"


def _cell(
    document: Located, raw: dict[str, object], index: int | None, read_at: ReadAt | None, incomplete: bool
) -> tuple[Cell | None, list[LocatedError]]:
    """The cell of a file at a position of its lists, and all that is wrong with it."""
    errors: list[LocatedError] = []
    sampling = raw.get("sampling")
    if isinstance(sampling, Mapping) and "temperature" in sampling and sampling["temperature"] is None:
        message = "null says neither what requests ask for nor that they ask for nothing"
        errors.append(document.error(("sampling", "temperature"), message, "0 for greedy, or server"))
    family = raw.get("family")
    if isinstance(family, str):
        if family not in FAMILIES:
            errors.append(document.error(("family",), f"there is no family {family!r}", ", ".join(FAMILIES)))
        # For an unknown family any defaults will do: the rest of the cell is checked all the same.
        known = FAMILIES.get(family, next(iter(FAMILIES.values())))
        raw.setdefault("headline", known.headline)
        raw.setdefault("guards", list(known.guards))
    try:
        cell = Cell.model_validate(raw)
    except ValidationError as error:
        found = located_errors(error, document, Cell, index=index, extra=DATASET_KEYS, hidden=INTERNAL)
        return None, [*found, *errors]
    if cell.client.name not in CLIENTS:
        message = f"there is no client {cell.client.name!r}"
        errors.append(document.error(("client",), message, ", ".join(CLIENTS)))
    with collecting(errors):
        cell = _with_content(cell, document, incomplete=incomplete)
    with collecting(errors):
        cell = _with_reference(cell, document)
    with collecting(errors):
        cell = _with_deploy(cell, document, read_at)
    with collecting(errors):
        _check_secrets(cell, document)
    if not errors:
        with collecting(errors):
            _check_stages(cell, document)
        with collecting(errors):
            _check_commands(cell, document)
    if not errors:
        judged = [("headline", cell.headline), *(("guards", name) for name in cell.guards)]
        judged += [("channels", name) for name in cell.channels]
        errors += [document.error((field,), problem) for field, problem in metric_problems(cell, judged)]
    return cell, errors


def _with_content(cell: Cell, document: Located, *, incomplete: bool) -> Cell:
    """Local folders and files as absolute paths, with their content as the revision.

    Other values are a hub's names, except a data set of the name of a file beside the cell. A data set whose
    requests are nowhere is rejected, unless its file may still be missing.
    """
    changed: dict[str, object] = {}
    pins: dict[str, str | None] = {}
    for field, pin in (("model", "model"), ("tokenizer", "tokenizer"), ("dataset_path", "dataset")):
        value: str | None = getattr(cell, field)
        if value is None:
            continue
        is_path = value.startswith(("./", "../", "/", "~"))
        try:
            path = (document.file.parent / Path(value).expanduser()).resolve()
            exists = path.exists()
        except (OSError, RuntimeError, ValueError) as error:
            if not is_path:
                continue
            reason = getattr(error, "strerror", None) or error
            raise document.error((field,), f"is no path: {reason}") from None
        # A model named like a folder here is the hub's model: only ./ and the like mean a path.
        if not is_path and not (exists and field == "dataset_path"):
            continue
        if not exists:
            allowed = "a folder relative to this file, or a hub's name"
            raise document.error((field,), f"there is no {path}", allowed)
        given, place = getattr(cell.revision, pin), ("revision", pin)
        pins[pin] = _checked_content(document, (field,), place, path, given, f"{LOCAL}..., or leave it out")
        changed[field] = str(path)
    if changed:
        revision = cell.revision.model_copy(update=pins)
        cell = cell.model_copy(update={**changed, "revision": revision})
    if incomplete:
        return cell
    is_file = cell.dataset_name in _READ_FROM_FILES
    if cell.dataset_path is None and (is_file or cell.dataset_name == "hf"):
        message = f"is missing: data set {cell.dataset_name} has no requests of its own"
        raise document.error(("dataset_path",), message)
    if is_file and not (cell.revision.dataset or "").startswith(LOCAL):
        missing = document.file.parent / str(cell.dataset_path)
        raise document.error(("dataset_path",), f"there is no {missing}", "a file relative to this one")
    return cell


def _with_reference(cell: Cell, document: Located) -> Cell:
    reference = cell.reference
    if reference is None or reference.image is None:
        return cell
    place = ("reference", "image")
    try:
        path = (document.file.parent / Path(reference.image).expanduser()).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise document.error(place, f"is no path: {getattr(error, 'strerror', None) or error}") from None
    if not is_file:
        raise document.error(place, f"there is no {path}", "a file relative to this one")
    pin = ("reference", "content")
    content = _checked_content(document, place, pin, path, reference.content, "leave it out")
    read = reference.model_copy(update={"image": str(path), "content": content})
    return cell.model_copy(update={"reference": read})


def _checked_content(
    document: Located, place: Place, pin: Place, path: Path, given: str | None, allowed: str
) -> str:
    """The content at ``place``, which ``pin`` may state. :raises LocatedError: no such content."""
    try:
        found = content_revision(path)
    except UsageError as error:
        raise document.error(place, error.message) from None
    if given not in (None, found):
        raise document.error(pin, f"is {given!r}, but {path} holds {found}", allowed)
    return found


def _with_deploy(cell: Cell, document: Located, read_at: ReadAt | None) -> Cell:
    def read(deploy: DeployYaml, place: Place) -> DeployYaml:
        if deploy.file is not None:
            try:
                path = (document.file.parent / deploy.file).resolve()
                return deploy.model_copy(update={"file": str(path), "text": read_text(path)})
            except (UsageError, OSError, RuntimeError, ValueError) as error:
                reason = error.message if isinstance(error, UsageError) else f"is no path: {error}"
                raise document.error((*place, "file"), reason) from None
        if deploy.at is not None and deploy.path is not None and read_at is not None:
            return deploy.model_copy(update={"text": read_at(deploy.at, deploy.path)})
        return deploy

    changed: dict[str, object] = {}
    if cell.deploy_yaml is not None:
        changed["deploy_yaml"] = read(cell.deploy_yaml, ("deploy_yaml",))
    variants = dict(cell.variants)
    for name, variant in cell.variants.items():
        if variant.deploy_yaml is not None:
            deploy = read(variant.deploy_yaml, ("variants", name, "deploy_yaml"))
            variants[name] = variant.model_copy(update={"deploy_yaml": deploy})
    return cell.model_copy(update={**changed, "variants": variants})


def _check_secrets(cell: Cell, document: Located) -> None:
    """Reject secrets: what a cell holds is kept in journals and shown in reports."""
    held = cell.model_dump(by_alias=True, exclude={"description", "deploy_yaml"})
    for place in literal_secrets(held):
        raise document.error(place, *secret_refused(place[-1]))
    for variant in (None, *cell.variants.values()):
        deploy = (variant or cell).deploy_yaml
        # A pinned YAML is kept in the journal with the cell.
        for pinned in pinned_documents(deploy):
            for place in literal_secrets(pinned.data):
                raise pinned.error(place, *secret_refused(place[-1]))


def _check_stages(cell: Cell, document: Located) -> None:
    """Reject stages, of the cell or a variant, with devices that the cell does not reserve."""
    for variant in ("", *cell.variants):
        served = apply_variant(cell, variant) if variant else cell
        documents = deploy_documents(served.deploy_yaml)
        # Which machine runs the cell is not known here: without devices it may be one that has none.
        for stage, reason in misplaced_stages(documents, served.stage_overrides, cell.gpus, may_be_cpu=True):
            above = ("variants", variant) if variant else ()
            place = (*above, *(("deploy_yaml",) if stage.file else stage.field.split(".")))
            file, line = document.file, document.line(place)
            if served.deploy_yaml is not None and stage.file == served.deploy_yaml.file:
                file, line = Path(stage.file), stage.line
            raise LocatedError(reason, file=file, line=line, field=stage.field, next_step=stage.advice)


def metric_problems(cell: Cell, judged: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The fields whose metric a cell cannot be judged by, and why. ``judged``: fields and their metrics."""
    for field, name in judged:
        metric = parse_metric(name)
        if field == "headline" and metric.metric.guard:
            yield field, f"{metric} is watched, not judged: make it a guard"
            continue
        try:
            CLIENTS[cell.client.name].check_metric(cell, metric)
        except UsageError as error:
            yield field, error.message


def _check_commands(cell: Cell, document: Located) -> None:
    """Check that family and client support the cell, before anything is built."""
    # Port and model name are placeholders: only a launch has real ones.
    endpoint = Endpoint(port=1, model_name="m")
    try:
        command = FAMILIES[cell.family].server(cell, endpoint)
        if command.image_check is None and cell.reference is not None:
            message = f"cell {cell.name}: reference: family {cell.family} makes no images to compare"
            raise UsageError(message, field="reference")
        # A YAML at a commit has no text without a repository, and the client's command needs the cell's
        # digest.
        if cell.deploy_yaml is None or not cell.deploy_yaml.at or cell.deploy_yaml.text is not None:
            client = CLIENTS[cell.client.name]
            words = client.command(cell, endpoint, seed=0, result=Path("result.json"), metadata={})
            if bool(words) == bool(command.result):
                message = f"cell {cell.name}: client {client.name} cannot measure family {cell.family}"
                raise UsageError(message, field="client")
    except UsageError as error:
        place = () if error.field is None else (error.field,)
        raise document.error(place, error.message) from None


MEANING = {
    "name": "the cell's name; by default that of the file",
    "family": "how it is served: text",
    "description": "its purpose, in one line",
    "model": "a hub's name, or a folder relative to this file (./ or ../ in front)",
    "tokenizer": "as model; by default the model's",
    "revision": "of model, tokenizer and dataset: a hub's commit or tag; a local folder's content",
    "task": "what the model does, in the engine's terms",
    "deploy_yaml": "of families with stages: {text}, {file}, {at, path}; a bare path is the change's own",
    "backend": "the client's backend: openai, openai-chat, ...",
    "endpoint": "the path of the requests: /v1/completions",
    "dataset_name": "as the client knows it: random, prefix_repetition, sharegpt, hf, custom, ...",
    "dataset_path": "a hub's name, or a file relative to this one",
    "dataset_args": "the client's options for the data set: lengths, ranges, splits",
    "sampling": "of every request: greedy by default for text, else the deploy YAML's; server: not sent",
    "ignore_eos": "whether requests run to the requested length",
    "extra_body": "added to the body of every request",
    "num_prompts": "requests of a run; may be a list",
    "num_warmups": "requests that the client sends before a run and does not count; may be a list",
    "discard_prompts": "requests of the discarded run of each launch; by default as many as in a run",
    "max_concurrency": "most requests at the same time; may be a list",
    "request_rate": "requests per second; inf, the default, is all at once; may be a list",
    "burstiness": "1 is a Poisson process, less is burstier",
    "percentile_metrics": "metrics of which the client reports percentiles",
    "metric_percentiles": "the percentiles, 0 to 100",
    "stage_overrides": "of families with stages: overrides by stage",
    "serve_args": "options of the server, by name or as tokens; ${NAME} takes a secret",
    "env": "environment variables of the server; ${NAME} takes a secret from the environment",
    "headline": "the judged metric: tpot, ttft:p99, output_throughput, ...",
    "guards": "metrics that must not get worse",
    "channels": "metrics that a change which moves the headline may move, too: bisect looks there first",
    "reference": "an image to generate again: image (a file) or pixels of it, prompt, input, body",
    "expected_answer": "of text: prompt, asked once a launch, and text, which its answer has to have",
    "client": "the load generator: its name, or name, args and env",
    "gpus": "devices to reserve; 0 for none",
    "ready_timeout": "seconds that a start may take",
    "seed": "seed of the first run; run k uses seed + k",
    "known_baselines": "values measured elsewhere; never compared with",
    "variants": "server-side overrides by name: serve_args, env, deploy_yaml, stage_overrides",
}
"""Descriptions of the keys of a cell file."""


def cell_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a cell file, with paired lists and short forms."""
    schema = Cell.model_json_schema(mode="validation")
    properties: dict[str, Any] = schema["properties"]
    for name in INTERNAL:
        del properties[name]
    for name, text in MEANING.items():
        properties[name]["description"] = text
        properties[name].pop("title", None)
    for name in LADDERS:
        kept = {
            key: properties[name].pop(key) for key in ("description", "default") if key in properties[name]
        }
        single = properties[name]
        properties[name] = {"anyOf": [single, {"type": "array", "items": single, "minItems": 1}], **kept}
    for name in ("client", "revision", "deploy_yaml"):
        form = properties[name]
        forms = form.pop("anyOf", None) or [{"$ref": form.pop("$ref")}]
        properties[name] = {"anyOf": [*forms, {"type": "string"}], **form}
    sampling = properties["sampling"]
    properties["sampling"] = {"anyOf": [{"$ref": sampling.pop("$ref")}, {"const": SERVER}], **sampling}
    properties["request_rate"]["default"] = "inf"
    for name in DATASET_KEYS:
        properties[name] = {"type": ["number", "string"], "description": "the same as in dataset_args"}
    schema["required"] = [name for name in schema["required"] if name != "name"]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "perfbisect cell"}
