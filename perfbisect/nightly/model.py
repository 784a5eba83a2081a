"""A night as a value, which is also its public JSON: measurements, alerts, bisections and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.bisect.result import BisectOutcome, CandidateDocument
from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OURS,
    EXIT_OUTSIDE,
    EXIT_REGRESSION,
    EXIT_USAGE,
)
from perfbisect.explain.attribution import ConclusionKind
from perfbisect.jobs.documents import Document, LongDocument, NotedDocument
from perfbisect.model.change import Change
from perfbisect.series.alerts import Alert
from perfbisect.series.nightly_report import ReportRow

KEEP = "keep"
"""The step that keeps the wheel or image of the night's commit."""

CellState = Literal["planned", "measured", "skipped", "failed", "not reached"]
"""``planned``: a dry run would measure it. ``skipped``: an earlier night measured it at this commit."""

BisectionState = Literal["measured", "named", "attributed", "postponed", "not worth it", "failed"]
"""How the commit behind an event was determined: by a bisection (``measured``), because the window holds one
commit (``named``), or by the commit's revert (``attributed``)."""

SEVERITY = (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    EXIT_REGRESSION,
    EXIT_OUTSIDE,
    EXIT_OURS,
    EXIT_INCONCLUSIVE,
    EXIT_OK,
)
"""Exit codes of a night, the most severe first."""


class NightCell(Document):
    """A cell of the night.

    ``launches`` measured of ``wanted``; ``value``: their median of the headline ``metric``. ``expected``:
    forecast minutes, ``forecast_basis`` says from what. ``reason``: why it failed, was skipped or not
    reached. ``too_few_nights``: the length of its series, where that is too short to judge. ``machine``: of a
    fleet, empty for this one.
    """

    name: str
    digest: str
    state: CellState
    machine: str = ""
    reason: str = ""
    launches: int = 0
    wanted: int = 0
    minutes: float = 0.0
    expected: float = 0.0
    forecast_basis: str = ""
    metric: str = ""
    unit: str = ""
    value: float | None = None
    too_few_nights: int | None = None
    job: str = ""
    log: str = ""
    next: str = ""


class NightProfile(Document):
    """The profile of a bisection's culprit and the change before it: a ``job``, or ``why`` there is none.

    ``profile_of``: the event. ``conclusion`` and ``sentence``: where the growth is, empty without a result.
    ``next``: reads the profile, or makes it by hand.
    """

    profile_of: str
    job: str = ""
    conclusion: ConclusionKind | Literal["not compared", ""] = ""
    sentence: str = ""
    minutes: float = 0.0
    why: str = ""
    next: str = ""


class NightBisection(Document):
    """How the night determined the commit behind an event.

    ``alert`` represents the event; ``why``: the deciding rule. ``job``: the bisection with its ``outcome``;
    ``culprit`` with its ``probability`` if there is one. ``phases``: which phase of a request took longer at
    a culprit that was measured, in sentences; ``profile``: None where none is due. ``minutes``: measured, of
    ``budget``.
    """

    event: str
    alert: str
    cell: str
    metric: str
    state: BisectionState
    why: str
    good: str = ""
    bad: str = ""
    commits: int = 0
    job: str = ""
    outcome: BisectOutcome | Literal[""] = ""
    culprit: Change | None = None
    candidates: tuple[CandidateDocument, ...] = ()
    """Of a narrowed bisection, the likeliest first."""
    probability: float = 0.0
    summary: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    profile: NightProfile | None = None
    minutes: float = 0.0
    budget: float = 0.0
    report: str = ""
    exit_code: int = 0


class NightStep(Document):
    """A step besides measuring. ``reported``: its result, or why it failed."""

    name: str
    state: Literal["done", "failed"]
    reported: str = ""
    where: str = ""
    next: str = ""


class NightFindings(Document):
    """What the series show. ``unjudged``: cells with too few nights and their number."""

    alerts: tuple[Alert, ...] = ()
    rows: tuple[ReportRow, ...] = ()
    notes: tuple[str, ...] = ()
    unjudged: dict[str, int] = Field(default_factory=dict)


class Night(NotedDocument, LongDocument):
    """``perfbisect nightly``: the result of a night, or with ``--dry-run`` its plan.

    ``night``: its folder in the state folder; ``name``: the nightly. ``began``, ``ended``: ISO 8601 in UTC,
    ``ended`` empty until it is over. ``commit``: what was measured; ``branch``: as configured.
    ``engine_version``, ``hardware``: as the launches report them. ``order``: cells by their first launch,
    shuffled by ``seed``. ``minutes``: measuring time, bisections included. ``rows``: series at a new level.
    ``files``: path by kind. ``exit_code``: of the worst finding; ``next``: the next command.
    """

    shown: ClassVar[Mapping[str, int]] = {"alerts": 20, "bisections": 20, "rows": 20}
    schema_: Literal["perfbisect.nightly/5"] = Field(default="perfbisect.nightly/5", alias="schema")
    name: str
    night: str
    dry_run: bool
    began: str
    ended: str
    commit: Change
    branch: str
    repository: str
    environment: str
    client: str
    machine: str
    hardware: str
    engine_version: str
    seed: int
    budget_minutes: float
    minutes: float
    order: tuple[str, ...]
    cells: tuple[NightCell, ...]
    alerts: tuple[Alert, ...]
    bisections: tuple[NightBisection, ...]
    rows: tuple[ReportRow, ...]
    steps: tuple[NightStep, ...]
    files: dict[str, str]
    exit_code: int
    next: str
    folder: str

    @property
    def has_news(self) -> bool:
        """Whether something was found, named, resolved or broken tonight."""
        return (
            any(alert.is_opened and alert.counts for alert in self.alerts)
            or any(alert.change == "closed" and alert.worse for alert in self.alerts)
            or any(bisection.culprit is not None for bisection in self.bisections)
            or bool(self.failed())
        )

    @property
    def kept(self) -> str:
        """What the step that keeps wheels and images reported; empty without it."""
        return next((step.reported for step in self.steps if step.name == KEEP), "")

    def failed(self) -> list[tuple[str, str]]:
        """Failed cells and steps with the reason."""
        cells = [(cell.name, cell.reason) for cell in self.cells if cell.state == "failed"]
        return cells + [(step.name, step.reported) for step in self.steps if step.state == "failed"]


def new_regressions(alerts: Iterable[Alert]) -> tuple[Alert, ...]:
    """New findings that made something worse."""
    return tuple(alert for alert in alerts if alert.is_opened and alert.counts and alert.worse)


def night_exit_code(
    alerts: Iterable[Alert], bisections: Iterable[NightBisection], failures: Iterable[int]
) -> int:
    """The code of the worst finding; ``failures``: codes of failed cells and steps."""
    codes = [*failures, *(bisection.exit_code for bisection in bisections)]
    if new_regressions(alerts):
        codes.append(EXIT_REGRESSION)
    return min(codes, key=SEVERITY.index, default=EXIT_OK)
