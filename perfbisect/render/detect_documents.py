"""The JSON of ``track detect``, ``ack``, ``close``, ``reopen`` and ``report``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.core.alert import Alert, ReportRow, State
from perfbisect.core.finding import RejectionKind
from perfbisect.core.series import Shape
from perfbisect.render.documents import Document, LongDocument


class ListedDocument(Document):
    """A change that was seen and is no alert: ``kind`` of reason, and ``why`` as a sentence."""

    cell: str
    metric: str
    first: str
    shape: Shape
    effect: float
    interval: tuple[float, float]
    p: float
    kind: RejectionKind
    why: str


class TogetherDocument(Document):
    """Series that together speak of a change, after the night ``after`` and by ``by``; none shows it alone.

    ``servers`` are for it, ``against`` are not; ``p``: how often so much comes about without a change, at
    most.
    """

    after: str
    by: str
    p: float
    series: tuple[str, ...]
    servers: tuple[str, ...]
    against: tuple[str, ...]


class ElsewhereDocument(Document):
    """A night from which on series are others: nothing is compared across it. ``series``: how many are."""

    night: str
    kind: str
    what: str
    series: int
    cells: tuple[str, ...]


class SeriesCensusDocument(Document):
    """A series, or a stretch of one between two boundaries. ``why``: why it was not judged. ``smallest``: the
    smallest step that so many such nights show in four of five cases, a ratio."""

    series: str
    nights: int
    p: float | None = None
    smallest: float | None = None
    changes: int = 0
    why: str = ""


class FamilyDocument(Document):
    """Series that are judged together: alerts of them are false at the rate ``fdr``, at most; ``cut`` is the
    largest p that was alarmed."""

    name: Literal["medians and single numbers", "means and percentiles"]
    judged: int
    alarmed: int
    cut: float


class CensusDocument(Document):
    """What was judged and what was not."""

    families: tuple[FamilyDocument, ...]
    series: tuple[SeriesCensusDocument, ...]
    not_judged: dict[str, int]
    builds_not_of_main: int


class GoneDocument(Document):
    """An alert that was told and is not found any more. ``new``: it was found the last time; ``seen``: when
    that was."""

    id: str
    cell: str
    metric: str
    state: State
    seen: str
    new: bool = False


class TrackDetectDocument(LongDocument):
    """``perfbisect track detect``. ``until``: the last night of the store; ``since``: the night from which on
    changes are told, empty for all."""

    shown: ClassVar[Mapping[str, int]] = {"alerts": 12, "listed": 5, "gone": 12, "boundaries": 12}
    schema_: Literal["perfbisect.track-detect/1"] = Field(default="perfbisect.track-detect/1", alias="schema")
    fdr: float
    since: str
    until: str
    alerts: tuple[Alert, ...]
    listed: tuple[ListedDocument, ...]
    together: tuple[TogetherDocument, ...]
    boundaries: tuple[ElsewhereDocument, ...]
    gone: tuple[GoneDocument, ...]
    census: CensusDocument

    def brief(self) -> TrackDetectDocument:
        """The alerts that are new, then those that are open and newest; of the census no single series."""
        alerts = sorted(self.alerts, key=lambda alert: alert.first, reverse=True)
        alerts.sort(key=lambda alert: (not (alert.new or alert.is_news), alert.state != "open"))
        brief = self.model_copy(update={"alerts": tuple(alerts)})
        brief = LongDocument.brief(brief)
        if not self.census.series:
            return brief
        left = {**brief.left_out, "census.series": len(self.census.series)}
        census = self.census.model_copy(update={"series": ()})
        return brief.model_copy(update={"census": census, "left_out": left})


class TrackStateDocument(Document):
    """``perfbisect track ack``, ``close`` and ``reopen``. Of an event ``alerts`` says how many are in it;
    ``cell``, ``metric`` and ``before`` are those of the first."""

    schema_: Literal["perfbisect.track-state/1"] = Field(default="perfbisect.track-state/1", alias="schema")
    id: str
    cell: str
    metric: str
    state: State
    before: State
    why: str
    alerts: int = 1


class TrackReportDocument(Document):
    """``perfbisect track report``: the nightly's table, and the events behind it. ``engine``: its version,
    empty where the last night does not say it. ``quiet``: series that were judged and show nothing."""

    schema_: Literal["perfbisect.track-report/1"] = Field(default="perfbisect.track-report/1", alias="schema")
    night: str
    build: str
    commit: str
    engine: str = ""
    rows: tuple[ReportRow, ...]
    quiet: int
    detect: TrackDetectDocument

    def brief(self) -> TrackReportDocument:
        return self.model_copy(update={"detect": self.detect.brief()})
