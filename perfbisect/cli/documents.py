"""The JSON documents of verbs that do not measure; those of the others are in ``render.documents``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from perfbisect.cli.cell_documents import (
    CellsImportDocument,
    CellsLintDocument,
    CellsMatchDocument,
    ChangesShowDocument,
    DifferenceDocument,
)
from perfbisect.cli.init_documents import InitDocument
from perfbisect.cli.job_documents import DetachedDocument, JobsDocument, StatusDocument, StopDocument
from perfbisect.render.check_documents import BaselineDocument, CheckedDocument, CheckPlanDocument
from perfbisect.render.compare_documents import (
    CompareDocument,
    ComparePlanDocument,
    SweepDocument,
    VerifyDocument,
)
from perfbisect.render.detect_documents import TrackDetectDocument, TrackReportDocument, TrackStateDocument
from perfbisect.render.documents import (
    CellDocument,
    Document,
    ErrorDocument,
    PlanDocument,
    ReportDocument,
    RunDocument,
)
from perfbisect.render.nightly_documents import NightlyDocument, NightlyInitDocument
from perfbisect.render.suspects import TrackSuspectsDocument
from perfbisect.render.track_documents import (
    TrackExportDocument,
    TrackIngestDocument,
    TrackPublishDocument,
    TrackRebaselineDocument,
    TrackTrendDocument,
)


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
