"""The JSON documents of commands that are not kinds of jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.changes.pins import ReplacedPackage
from perfbisect.environments.base import Environment
from perfbisect.environments.kept import KeptArtifact
from perfbisect.jobs.documents import Document
from perfbisect.model.change import Change
from perfbisect.model.metric import Metric, MetricKind


class ChangesShowDocument(Document):
    """``perfbisect changes show``: ``vllm`` is what the engine under it is, ``none`` where no pin is read."""

    schema_: Literal["perfbisect.changes-show/1"] = Field(default="perfbisect.changes-show/1", alias="schema")
    change: Change
    kind: Literal["commit", "release"]
    vllm: Literal["commit", "release", "unknown", "none"]
    tag: str
    release: str
    commit: str
    packages: tuple[ReplacedPackage, ...]


class ListedMetric(Document):
    """A metric; ``eras``: from when on its client measures it otherwise."""

    metric: Metric
    kind: MetricKind
    eras: tuple[str, ...]


class MetricsDocument(Document):
    """``perfbisect metrics``."""

    schema_: Literal["perfbisect.metrics/1"] = Field(default="perfbisect.metrics/1", alias="schema")
    metrics: tuple[ListedMetric, ...]


class VersionDocument(Document):
    """``perfbisect --version``: of the program, and of what it writes; ``documents``: of every ``--json``."""

    schema_: Literal["perfbisect.version/1"] = Field(default="perfbisect.version/1", alias="schema")
    version: str
    journal: int
    store: int
    documents: tuple[str, ...]


class CacheFolderDocument(Document):
    """A folder of the cache: ``environment``, ``build folder`` or ``unfinished``, named by its key.

    ``megabytes``: on disk; of ``env gc`` what removing it frees. ``why``: it was, or would be, removed.
    """

    folder: str
    kind: str
    builder: str
    spec: str
    change: str
    engine_version: str
    megabytes: float
    last_used: str
    why: str


class EnvListDocument(Document):
    """``perfbisect env list``; ``megabytes``: of all together, where a file that they share counts once.

    ``artifacts``: kept wheels and images, with their ``artifact_megabytes``.
    """

    schema_: Literal["perfbisect.env-list/3"] = Field(default="perfbisect.env-list/3", alias="schema")
    cache: str
    environments: tuple[CacheFolderDocument, ...]
    megabytes: float = 0.0
    artifacts: tuple[KeptArtifact, ...]
    artifact_megabytes: float


class EnvKeepDocument(Document):
    """``perfbisect env keep``. ``dropped``: to make room, or with --drop.

    ``artifact_megabytes``: of all kept wheels and images.
    """

    schema_: Literal["perfbisect.env-keep/1"] = Field(default="perfbisect.env-keep/1", alias="schema")
    artifacts: tuple[KeptArtifact, ...]
    dropped: tuple[KeptArtifact, ...]
    artifact_megabytes: float


class EnvBuildDocument(Document):
    """``perfbisect env build``; ``spec``: of all builders of a chain."""

    schema_: Literal["perfbisect.env-build/2"] = Field(default="perfbisect.env-build/2", alias="schema")
    change: str
    spec: str
    environment: Environment


class EnvGcDocument(Document):
    """``perfbisect env gc``. ``in_use``: what would have been removed, but somebody uses it.

    ``dropped``: kept wheels and images that exceed the size of these.
    """

    schema_: Literal["perfbisect.env-gc/3"] = Field(default="perfbisect.env-gc/3", alias="schema")
    cache: str
    dry_run: bool
    freed_megabytes: float
    kept_megabytes: float
    removed: tuple[CacheFolderDocument, ...]
    in_use: tuple[CacheFolderDocument, ...]
    kept: tuple[CacheFolderDocument, ...]
    dropped: tuple[KeptArtifact, ...]


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
    """``perfbisect skill install``. ``copied``: False where just these files were there already.

    ``link``: where Claude Code reads the same skill; None where a folder was named.
    """

    schema_: Literal["perfbisect.skill-install/1"] = Field(
        default="perfbisect.skill-install/1", alias="schema"
    )
    folder: str
    link: str | None = None
    version: str
    copied: bool
    files: tuple[str, ...]


class SchemasDocument(Document):
    """``perfbisect schema``: a verb -> the documents that its ``--json`` prints."""

    schema_: Literal["perfbisect.schemas/1"] = Field(default="perfbisect.schemas/1", alias="schema")
    verbs: dict[str, tuple[str, ...]]
