"""The JSON documents of every command, and their JSON Schemas."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from perfbisect.bisect.documents import ReportDocument
from perfbisect.bisect.forecast import PlanDocument
from perfbisect.commands import cells, documents
from perfbisect.commands.detach import DetachedDocument
from perfbisect.commands.explain import ProfilePlanDocument
from perfbisect.commands.status import JobsDocument, StatusDocument, StopDocument
from perfbisect.compare import documents as compare
from perfbisect.explain.hunk_forecast import HunksPlanDocument
from perfbisect.explain.hunk_report import HunksDocument
from perfbisect.explain.profile_report import ProfileDocument
from perfbisect.explain.report import ExplainDocument
from perfbisect.fleet.building import BuildDocument
from perfbisect.fleet.bundle import BundleDocument, MachineDocument
from perfbisect.fleet.install import InstalledDocument
from perfbisect.jobs.documents import ErrorDocument
from perfbisect.nightly.model import Night
from perfbisect.series.detect import TrackDetectDocument, TrackStateDocument
from perfbisect.series.export import TrackExportDocument
from perfbisect.series.ingest import TrackIngestDocument
from perfbisect.series.night_table import TrackShowDocument
from perfbisect.series.nightly_report import TrackReportDocument
from perfbisect.series.publish import TrackPublishDocument
from perfbisect.series.rebaseline import TrackRebaselineDocument
from perfbisect.series.suspects.job import TrackSuspectsDocument
from perfbisect.setup.doctor import DoctorDocument
from perfbisect.setup.templates import InitDocument, NightlyInitDocument

_JOBS = (
    ReportDocument,
    compare.RunDocument,
    compare.CompareDocument,
    compare.CheckDocument,
    HunksDocument,
    ProfileDocument,
)
"""The documents of the kinds of jobs."""

VERBS: dict[str, tuple[type[BaseModel], ...]] = {
    "init": (InitDocument,),
    "bisect": (ReportDocument, PlanDocument, DetachedDocument),
    "resume": (*_JOBS, DetachedDocument),
    "report": _JOBS,
    "explain": (
        ExplainDocument,
        ProfileDocument,
        ProfilePlanDocument,
        HunksDocument,
        HunksPlanDocument,
        DetachedDocument,
    ),
    "check": (
        compare.CheckDocument,
        compare.CheckPlanDocument,
        compare.ComparePlanDocument,
        compare.SavedBaselineDocument,
        DetachedDocument,
    ),
    "compare": (
        compare.CompareDocument,
        compare.ComparePlanDocument,
        compare.SweepDocument,
        DetachedDocument,
    ),
    "verify": (compare.VerifyDocument, compare.ComparePlanDocument, DetachedDocument),
    "run": (compare.RunDocument, compare.RunPlanDocument, DetachedDocument),
    "status": (StatusDocument, JobsDocument),
    "stop": (StopDocument,),
    "cells list": (cells.CellsDocument,),
    "cells show": (cells.CellShowDocument,),
    "cells validate": (cells.CellsValidateDocument,),
    "cells diff": (cells.CellsDiffDocument,),
    "cells match": (cells.CellsMatchDocument,),
    "cells lint": (cells.CellsLintDocument,),
    "cells import": (cells.CellsImportDocument,),
    "changes show": (documents.ChangesShowDocument,),
    "agent run": (BundleDocument,),
    "agent build": (BuildDocument,),
    "agent look": (MachineDocument,),
    "agent install": (InstalledDocument,),
    "env list": (documents.EnvListDocument,),
    "env build": (documents.EnvBuildDocument,),
    "env gc": (documents.EnvGcDocument,),
    "doctor": (DoctorDocument,),
    "nightly": (Night, NightlyInitDocument),
    "track ingest": (TrackIngestDocument,),
    "track show": (TrackShowDocument,),
    "track rebaseline": (TrackRebaselineDocument,),
    "track detect": (TrackDetectDocument,),
    "track suspects": (TrackSuspectsDocument,),
    "track report": (TrackReportDocument,),
    "track reproduce": (compare.CompareDocument, compare.ComparePlanDocument, DetachedDocument),
    "track ack": (TrackStateDocument,),
    "track close": (TrackStateDocument,),
    "track reopen": (TrackStateDocument,),
    "track export": (TrackExportDocument,),
    "track publish": (TrackPublishDocument,),
    "dashboard build": (documents.DashboardDocument,),
    "dashboard open": (documents.DashboardOpenDocument,),
    "skill install": (documents.SkillInstallDocument,),
    "schema": (documents.SchemasDocument,),
    "version": (documents.VersionDocument,),
    "error": (ErrorDocument,),
}
"""A verb -> what its ``--json`` prints."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_names() -> dict[str, list[str]]:
    """Map each verb to the names of its documents, such as ``perfbisect.report/2``."""
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
    """Generate the schema of what a verb prints: any one of its documents."""
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
