"""``perfbisect schema``."""

from __future__ import annotations

from typing import Any, Literal

import click
from pydantic import BaseModel, Field

from perfbisect.commands import options
from perfbisect.commands.documents import (
    CellsImportDocument,
    CellsLintDocument,
    CellsMatchDocument,
    ChangesShowDocument,
    DetachedDocument,
    DifferenceDocument,
    InitDocument,
    JobsDocument,
    StatusDocument,
    StopDocument,
)
from perfbisect.compare.check_documents import BaselineDocument, CheckedDocument, CheckPlanDocument
from perfbisect.compare.documents import CompareDocument, ComparePlanDocument, SweepDocument, VerifyDocument
from perfbisect.jobs.documents import (
    CellDocument,
    Document,
    ErrorDocument,
    PlanDocument,
    ReportDocument,
    RunDocument,
)
from perfbisect.nightly.report import NightlyDocument
from perfbisect.series.documents import (
    TrackDetectDocument,
    TrackExportDocument,
    TrackIngestDocument,
    TrackPublishDocument,
    TrackRebaselineDocument,
    TrackReportDocument,
    TrackStateDocument,
    TrackTrendDocument,
)
from perfbisect.series.suspects.render import TrackSuspectsDocument
from perfbisect.setup.nightly_template import NightlyInitDocument


class CellFileDocument(Document):
    """A cell file that can be named; ``shipped`` with perfbisect or the user's own."""

    name: str
    path: str
    shipped: bool
    cells: tuple[str, ...]
    description: str
    error: str


class CellsDocument(Document):
    """``perfbisect cells list``."""

    schema_: Literal["perfbisect.cells/1"] = Field(default="perfbisect.cells/1", alias="schema")
    cells: tuple[CellFileDocument, ...]


class CellShowDocument(Document):
    """``perfbisect cells show``."""

    schema_: Literal["perfbisect.cell/1"] = Field(default="perfbisect.cell/1", alias="schema")
    cells: tuple[CellDocument, ...]
    workloads: tuple[dict[str, Any], ...]


class FileCheckDocument(Document):
    """One file and what is wrong in it."""

    file: str
    cells: tuple[str, ...]
    error: str | None
    where: str | None


class CellsValidateDocument(Document):
    """``perfbisect cells validate``."""

    schema_: Literal["perfbisect.cells-validate/1"] = Field(
        default="perfbisect.cells-validate/1", alias="schema"
    )
    valid: bool
    files: tuple[FileCheckDocument, ...]


class CellsDiffDocument(Document):
    """``perfbisect cells diff``: comparable exactly where the digests are equal."""

    schema_: Literal["perfbisect.cells-diff/1"] = Field(default="perfbisect.cells-diff/1", alias="schema")
    left: str
    right: str
    comparable: bool
    differences: tuple[DifferenceDocument, ...]


class EnvironmentDocument(Document):
    """An environment in the cache."""

    key: str
    builder: str
    spec: str
    change: str
    engine_version: str
    folder: str
    complete: bool
    megabytes: float


class EnvListDocument(Document):
    """``perfbisect env list``."""

    schema_: Literal["perfbisect.env-list/1"] = Field(default="perfbisect.env-list/1", alias="schema")
    cache: str
    environments: tuple[EnvironmentDocument, ...]


class EnvBuildDocument(Document):
    """``perfbisect env build``. ``seconds``: 0 where it was there already."""

    schema_: Literal["perfbisect.env-build/1"] = Field(default="perfbisect.env-build/1", alias="schema")
    change: str
    spec: str
    key: str
    interpreter: str
    engine_version: str
    engine_commit: str
    engine_file: str
    seconds: float


class GcItemDocument(Document):
    """A folder of the cache. ``megabytes``: what removing it frees; ``why``: it was, or would be, removed."""

    folder: str
    kind: str
    change: str
    megabytes: float
    last_used: str
    why: str


class EnvGcDocument(Document):
    """``perfbisect env gc``. ``in_use``: what would have been removed, but somebody uses it."""

    schema_: Literal["perfbisect.env-gc/1"] = Field(default="perfbisect.env-gc/1", alias="schema")
    cache: str
    dry_run: bool
    freed_megabytes: float
    kept_megabytes: float
    removed: tuple[GcItemDocument, ...]
    in_use: tuple[GcItemDocument, ...]
    kept: tuple[GcItemDocument, ...]


class CheckDocument(Document):
    """One thing looked at; ``advice``: what to do about it."""

    name: str
    state: Literal["good", "warning", "bad"]
    found: str
    advice: str


class DoctorDocument(Document):
    """``perfbisect doctor``."""

    schema_: Literal["perfbisect.doctor/1"] = Field(default="perfbisect.doctor/1", alias="schema")
    fit: bool
    checks: tuple[CheckDocument, ...]


class DashboardDocument(Document):
    """``perfbisect dashboard build``. ``first_page_bytes``: read before anything is opened."""

    schema_: Literal["perfbisect.dashboard/1"] = Field(default="perfbisect.dashboard/1", alias="schema")
    index: str
    cells: int
    alerts: int
    bisections: int
    first_page_bytes: int
    bytes: int


class DashboardOpenDocument(Document):
    """``perfbisect dashboard open``. ``opened``: a browser took it."""

    schema_: Literal["perfbisect.dashboard-open/1"] = Field(
        default="perfbisect.dashboard-open/1", alias="schema"
    )
    address: str
    opened: bool


class SkillInstallDocument(Document):
    """``perfbisect skill install``. ``copied``: False where just these files were there already."""

    schema_: Literal["perfbisect.skill-install/1"] = Field(
        default="perfbisect.skill-install/1", alias="schema"
    )
    folder: str
    version: str
    copied: bool
    files: tuple[str, ...]


class SchemasDocument(Document):
    """``perfbisect schema``: a verb -> the documents that its ``--json`` prints."""

    schema_: Literal["perfbisect.schemas/1"] = Field(default="perfbisect.schemas/1", alias="schema")
    verbs: dict[str, tuple[str, ...]]


VERBS: dict[str, tuple[type[BaseModel], ...]] = {
    "init": (InitDocument,),
    "bisect": (ReportDocument, PlanDocument, DetachedDocument),
    "resume": (ReportDocument, RunDocument, CompareDocument, DetachedDocument, CheckedDocument),
    "report": (ReportDocument, RunDocument, CompareDocument, CheckedDocument),
    "check": (CheckedDocument, CheckPlanDocument, ComparePlanDocument, BaselineDocument, DetachedDocument),
    "compare": (CompareDocument, ComparePlanDocument, SweepDocument, DetachedDocument),
    "verify": (VerifyDocument, ComparePlanDocument, DetachedDocument),
    "run": (RunDocument, DetachedDocument),
    "status": (StatusDocument, JobsDocument),
    "stop": (StopDocument,),
    "cells list": (CellsDocument,),
    "cells show": (CellShowDocument,),
    "cells validate": (CellsValidateDocument,),
    "cells diff": (CellsDiffDocument,),
    "cells match": (CellsMatchDocument,),
    "cells lint": (CellsLintDocument,),
    "cells import": (CellsImportDocument,),
    "changes show": (ChangesShowDocument,),
    "env list": (EnvListDocument,),
    "env build": (EnvBuildDocument,),
    "env gc": (EnvGcDocument,),
    "doctor": (DoctorDocument,),
    "nightly": (NightlyDocument, NightlyInitDocument),
    "track ingest": (TrackIngestDocument,),
    "track trend": (TrackTrendDocument,),
    "track rebaseline": (TrackRebaselineDocument,),
    "track detect": (TrackDetectDocument,),
    "track suspects": (TrackSuspectsDocument,),
    "track report": (TrackReportDocument,),
    "track repro": (CompareDocument, ComparePlanDocument, DetachedDocument),
    "track ack": (TrackStateDocument,),
    "track close": (TrackStateDocument,),
    "track reopen": (TrackStateDocument,),
    "track export": (TrackExportDocument,),
    "track publish": (TrackPublishDocument,),
    "dashboard build": (DashboardDocument,),
    "dashboard open": (DashboardOpenDocument,),
    "skill install": (SkillInstallDocument,),
    "schema": (SchemasDocument,),
    "error": (ErrorDocument,),
}
"""A verb -> what its ``--json`` prints."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_names() -> dict[str, list[str]]:
    """Map each verb to the names of its documents, such as ``perfbisect.report/1``."""
    return {verb: [document_name(model) for model in VERBS[verb]] for verb in sorted(VERBS)}


def document_name(model: type[BaseModel]) -> str:
    """Return the value of a document's ``schema`` field."""
    return str(model.model_fields["schema_"].default)


def document_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Generate a document's schema, open for additional keys because readers ignore unknown ones."""
    schema = model.model_json_schema(mode="serialization")
    if "$ref" in schema:  # pydantic refers to the definition of a model that contains itself
        definition = schema["$defs"][schema["$ref"].rpartition("/")[2]]
        schema = {**definition, "$defs": schema["$defs"]}
    opened: dict[str, Any] = _allow_additional_keys(schema)
    return opened


def verb_schema(verb: str) -> dict[str, Any]:
    """Generate the schema of what a verb prints: any one of its documents.

    Raises:
        KeyError: the verb does not exist.
    """
    references: list[dict[str, str]] = []
    definitions: dict[str, Any] = {}
    for model in VERBS[verb]:
        schema = document_schema(model)
        definitions.update(schema.pop("$defs", {}))
        definitions[schema["title"]] = schema
        references.append({"$ref": f"#/$defs/{schema['title']}"})
    return {
        "$schema": DIALECT,
        "title": f"perfbisect {verb} --json",
        "anyOf": references,
        "$defs": definitions,
    }


def _allow_additional_keys(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: _allow_additional_keys(value)
            for key, value in part.items()
            if (key, value) != ("additionalProperties", False)
        }
    if isinstance(part, list):
        return [_allow_additional_keys(item) for item in part]
    return part


@click.command(short_help="JSON Schemas of documents and cells.")
@click.argument("verb", nargs=-1, metavar="[VERB|cell]")
@options.as_json
def schema(verb: tuple[str, ...], as_json: bool) -> int:
    """The JSON Schema of what VERB prints with --json, or of a cell file. Without VERB: which there are.

    The number behind a document's name grows where a reader of the one before would go wrong; what is new
    beside the old does not.

    \b
    Examples:
      perfbisect schema
      perfbisect schema bisect
      perfbisect schema track detect
      perfbisect schema cell
    """
    import json

    from perfbisect.cells.schema import cell_schema
    from perfbisect.common.suggest import hint
    from perfbisect.errors import UsageError

    verbs = document_names()
    if not verb:
        if as_json:
            document = SchemasDocument(verbs={name: tuple(names) for name, names in verbs.items()})
            click.echo(json.dumps(document.model_dump(by_alias=True), indent=2))
            return 0
        width = max(map(len, verbs))
        for name, documents in verbs.items():
            click.echo(f"{name:<{width}}  {', '.join(documents)}")
        return 0
    name = " ".join(verb)
    if name != "cell" and name not in verbs:
        known = ["cell", *verbs]
        raise UsageError(
            f"no schema of {name!r}{hint(name, known)}; there are: {', '.join(known)}",
            next_step="perfbisect schema",
        )
    click.echo(json.dumps(cell_schema() if name == "cell" else verb_schema(name), indent=2))
    return 0
