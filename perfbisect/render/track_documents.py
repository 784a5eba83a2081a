"""The JSON documents of ``perfbisect track``: what was brought in, the table of a series, new baselines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfbisect.render.documents import Document, MetricDocument


class FateDocument(Document):
    """Results that are no points, by why; with one of them."""

    fate: str
    count: int
    reason: str
    file: str


class TrackIngestDocument(Document):
    """``perfbisect track ingest``. ``points``, ``rejected``: of the builds of which something was new."""

    schema_: Literal["perfbisect.track-ingest/1"] = Field(default="perfbisect.track-ingest/1", alias="schema")
    store: str
    builds: int
    new: int
    changed: int
    unchanged: int
    elsewhere: int
    points: int
    rejected: tuple[FateDocument, ...]
    cells: int
    builds_not_of_main: int
    builds_of_unknown_branch: int


class TrendRowDocument(Document):
    """One night of a cell. ``value`` None: it has none, ``marks`` say why. ``change``: against the last value
    before, as a share (of a share: the difference). ``main``: None where the branch is not known."""

    began: str
    night: str
    build: str
    url: str
    commit: str
    main: bool | None
    value: float | None
    change: float | None
    marks: tuple[str, ...]


class TrendDocument(Document):
    """A metric of a cell. ``lacking``: points of the cell that do not report it.

    ``neutral``: neither more nor less of it is better, whatever its ``direction`` says: it is a property of
    what is asked or answered.
    """

    cell: str
    metric: MetricDocument
    rows: tuple[TrendRowDocument, ...]
    lacking: int
    neutral: bool = False


class CellLineDocument(Document):
    """A cell in the list: its last value of a metric."""

    cell: str
    metric: str
    unit: str
    nights: int
    first: str
    last: str
    value: float
    change: float | None
    marks: tuple[str, ...]


class TrackTrendDocument(Document):
    """``perfbisect track trend``: the tables that were asked for, or the list of all cells."""

    schema_: Literal["perfbisect.track-trend/1"] = Field(default="perfbisect.track-trend/1", alias="schema")
    tables: tuple[TrendDocument, ...]
    cells: tuple[CellLineDocument, ...]
    unknown_branch: int


class BaselineDocument(Document):
    """A baseline: ``name`` and numbers as the specification has them. ``n``: nights of the mean;
    ``left_out``: other nights that were measured, of another level or workload."""

    cell: str
    name: str
    old: float | None
    mean: float | None
    new: float | None
    change: float | None
    n: int
    status: str
    why: str
    left_out: tuple[str, ...] = ()


class TrackRebaselineDocument(Document):
    """``perfbisect track rebaseline``: means from ``first`` to ``last``, both included."""

    schema_: Literal["perfbisect.track-rebaseline/1"] = Field(
        default="perfbisect.track-rebaseline/1", alias="schema"
    )
    first: str
    last: str
    rows: tuple[BaselineDocument, ...]


class TrackExportDocument(Document):
    """``perfbisect track export`` into files, by what they are; ``points``: those that were read."""

    schema_: Literal["perfbisect.track-export/1"] = Field(default="perfbisect.track-export/1", alias="schema")
    format: str
    files: dict[str, str]
    points: int
    cells: int


class TrackPublishDocument(Document):
    """``perfbisect track publish``. ``launches`` stand in the folder now; ``left_out`` do not, and why."""

    schema_: Literal["perfbisect.track-publish/1"] = Field(
        default="perfbisect.track-publish/1", alias="schema"
    )
    folder: str
    launches: int
    written: tuple[str, ...]
    unchanged: int
    removed: tuple[str, ...]
    left_out: tuple[str, ...]
