"""A night as a value: what was measured, what the series show, and what was done about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict

from perfbisect.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OURS,
    EXIT_OUTSIDE,
    EXIT_REGRESSION,
    EXIT_USAGE,
)
from perfbisect.model.change import Change
from perfbisect.series.alerts import Alert, ReportRow

CellState = Literal["planned", "measured", "skipped", "failed", "not reached"]
"""``planned``: a dry run would measure it. ``skipped``: an earlier night measured it at this commit."""

AlertChange = Literal["opened", "reopened", "updated", "closed"]
"""``updated``: reported by an earlier night and still there."""

BisectionState = Literal["measured", "named", "attributed", "postponed", "not worth it", "failed"]
"""How the commit behind an event was determined: by a bisection (``measured``), because the window holds one
commit (``named``), or by the commit's revert (``attributed``)."""

BisectionOutcome = Literal[
    "found", "not reproduced", "too small", "out of budget", "inconclusive", "unfinished"
]

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

_JSON = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


def most_severe(exit_codes: Iterable[int]) -> int:
    """Choose the exit code of the worst finding.

    Raises:
        ValueError: a code is not in :data:`SEVERITY`.
    """
    return min(exit_codes, key=SEVERITY.index, default=EXIT_OK)


@dataclass(frozen=True, kw_only=True)
class NightCell:
    """A cell of the night.

    ``launches`` measured of ``wanted``; ``value``: their median of the headline ``metric``. ``expected``:
    forecast minutes, ``forecast_basis`` says from what. ``reason``: why it failed, was skipped or not
    reached. ``too_few_nights``: the length of its series, where that is too short to judge.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    name: str
    digest: str
    state: CellState
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


@dataclass(frozen=True)
class NightAlert:
    """An alert as the night leaves it. ``counts``: a finding by the rules of the configuration."""

    alert: Alert
    change: AlertChange
    counts: bool

    @property
    def is_new(self) -> bool:
        return self.change in ("opened", "reopened")


@dataclass(frozen=True)
class NightFindings:
    """What the series show. ``unjudged``: cells with too few nights and their number."""

    alerts: tuple[NightAlert, ...]
    rows: tuple[ReportRow, ...]
    notes: tuple[str, ...] = ()
    unjudged: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NightBisection:
    """How the night handled an event, represented by one of its alerts.

    ``why``: the deciding rule. ``outcome``, ``culprit`` and ``probability`` come from ``job``, which measured
    ``minutes`` of ``budget``.
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
    outcome: BisectionOutcome | Literal[""] = ""
    culprit: Change | None = None
    probability: float = 0.0
    summary: tuple[str, ...] = ()
    minutes: float = 0.0
    budget: float = 0.0
    report: str = ""
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class NightStep:
    """A step besides measuring. ``reported``: its result, or why it failed."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    name: str
    state: Literal["done", "failed"]
    reported: str = ""
    where: str = ""
    next: str = ""


@dataclass(frozen=True, kw_only=True)
class Night:
    """One night, complete or in progress; with ``dry_run`` what it would do.

    ``id``: its folder; ``name``: the nightly. ``began``, ``ended``: ISO 8601 in UTC, ``ended`` empty until it
    is over. ``engine_version``, ``hardware``: as the launches report them. ``order``: cells by their first
    launch, shuffled by ``seed``. ``minutes``: measuring time with bisections. ``files``: path by kind.
    ``failures``: exit codes of failed cells and steps. ``next``: a command.
    """

    name: str
    id: str
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
    alerts: tuple[NightAlert, ...]
    bisections: tuple[NightBisection, ...]
    rows: tuple[ReportRow, ...]
    steps: tuple[NightStep, ...]
    files: Mapping[str, str]
    failures: tuple[int, ...]
    notes: tuple[str, ...]
    next: str
    folder: str

    @property
    def regressions(self) -> tuple[Alert, ...]:
        """New findings that made something worse."""
        return tuple(
            change.alert for change in self.alerts if change.is_new and change.counts and change.alert.worse
        )

    @property
    def exit_code(self) -> int:
        """The code of the worst finding or failure."""
        codes = [*self.failures, *(bisection.exit_code for bisection in self.bisections)]
        return most_severe([*codes, EXIT_REGRESSION] if self.regressions else codes)

    @property
    def has_news(self) -> bool:
        """Whether something was found, named, resolved or broken tonight."""
        return (
            any(change.is_new and change.counts for change in self.alerts)
            or any(change.change == "closed" and change.alert.worse for change in self.alerts)
            or any(bisection.culprit is not None for bisection in self.bisections)
            or bool(self.failed())
        )

    def failed(self) -> list[tuple[str, str]]:
        """Failed cells and steps with the reason."""
        cells = [(cell.name, cell.reason) for cell in self.cells if cell.state == "failed"]
        return cells + [(step.name, step.reported) for step in self.steps if step.state == "failed"]
