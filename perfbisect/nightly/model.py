"""A night of a nightly as values: what it measured, what its series show, and what was done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict

from perfbisect.errors import EXIT_REGRESSION
from perfbisect.model.change import Change
from perfbisect.nightly.schedule import worst
from perfbisect.series.alerts import Alert, ReportRow

CellState = Literal["planned", "measured", "skipped", "failed", "not reached"]
"""``planned``: of a dry run, it would be measured. ``skipped``: it was measured at this commit before."""

AlertChange = Literal["opened", "reopened", "updated", "closed"]
"""What the night did to an alert. ``updated``: it was reported before and is still there."""

BisectionState = Literal["measured", "named", "attributed", "postponed", "not worth it", "failed"]
"""How it was decided which commit is behind an event. ``measured``: by a bisection; ``named``: the window
holds one commit; ``attributed``: by the commit's own revert; ``postponed``: no minutes were left tonight."""

BisectionOutcome = Literal[
    "found", "not reproduced", "too small", "out of budget", "inconclusive", "unfinished"
]

_JSON = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


@dataclass(frozen=True, kw_only=True)
class NightCell:
    """A cell of the night.

    ``launches``: fresh server starts that measured, of ``wanted``. ``value``: the median over them of the
    headline ``metric``, in ``unit``. ``expected``: minutes that were foreseen, ``foreseen`` says from what.
    ``reason``: why it failed, was skipped or not reached; ``log`` and ``next`` of a failure.
    ``too_few_nights``: how many nights its series have, where those are too few to judge them.
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
    foreseen: str = ""
    metric: str = ""
    unit: str = ""
    value: float | None = None
    too_few_nights: int | None = None
    job: str = ""
    log: str = ""
    next: str = ""


@dataclass(frozen=True)
class NightAlert:
    """An alert as the night leaves it. ``counts``: it is a finding by the rules of the configuration."""

    alert: Alert
    change: AlertChange
    counts: bool

    @property
    def is_new(self) -> bool:
        return self.change in ("opened", "reopened")


@dataclass(frozen=True)
class NightFindings:
    """What the series show on a night. ``unjudged``: cells with too few nights -> how many they have."""

    alerts: tuple[NightAlert, ...]
    rows: tuple[ReportRow, ...]
    notes: tuple[str, ...] = ()
    unjudged: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NightBisection:
    """What was done to name the commit behind an event, by which of its alerts.

    ``why``: the rule that decided. ``job``: the bisection, with its ``outcome``; ``culprit`` with its
    ``probability`` where a commit is named. ``minutes``: measured, of ``budget``.
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
    sentences: tuple[str, ...] = ()
    minutes: float = 0.0
    budget: float = 0.0
    report: str = ""
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True)
class NightStep:
    """A step of the night besides measuring. ``told``: what came of it, or why it failed."""

    __pydantic_config__: ClassVar[ConfigDict] = _JSON

    name: str
    state: Literal["done", "failed"]
    told: str = ""
    where: str = ""
    next: str = ""


@dataclass(frozen=True, kw_only=True)
class Night:
    """One night: what was measured at which commit, what was found, and what came of it.

    ``id`` names it (its folder in the state folder), ``name`` the nightly. ``dry_run``: nothing was started,
    this is what it would do. ``began`` and ``ended``: ISO 8601 in UTC, ``ended`` empty while it is not over.
    ``engine_version``, ``hardware``: as the launches report them, empty where none did. ``order``: the cells
    in the order of their first launches, drawn by ``seed``. ``minutes``: of measuring, bisections included.
    ``files``: what was written, by kind. ``failures``: the exit codes of cells and steps that failed.
    ``next``: the command that comes next.
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
        """What became worse tonight and is a finding by the rules."""
        return tuple(one.alert for one in self.alerts if one.is_new and one.counts and one.alert.worse)

    @property
    def exit_code(self) -> int:
        """The exit code of the worst finding or failure."""
        found = [EXIT_REGRESSION] if self.regressions else []
        return worst([*self.failures, *found, *(one.exit_code for one in self.bisections)])

    @property
    def has_news(self) -> bool:
        """Whether anything was found, named, over or broken tonight."""
        return (
            any(one.is_new and one.counts for one in self.alerts)
            or any(one.change == "closed" and one.alert.worse for one in self.alerts)
            or any(one.culprit is not None for one in self.bisections)
            or any(cell.state == "failed" for cell in self.cells)
            or any(step.state == "failed" for step in self.steps)
        )
