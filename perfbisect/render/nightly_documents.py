"""The JSON of ``perfbisect nightly``: one night, from the commit that it measured to whom it told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from perfbisect.render.detect_documents import ReportRowDocument
from perfbisect.render.documents import ChangeDocument, Document, Ending, LongDocument
from perfbisect.render.site_documents import Cause, Shape, State

CellState = Literal["planned", "measured", "skipped", "failed", "not reached"]
"""``planned``: of a dry run, it would be measured. ``skipped``: it was measured at this commit before."""

AlertChange = Literal["opened", "reopened", "updated", "closed"]
"""What the night did to an alert. ``updated``: it was told before and is still there."""

Settled = Literal["measured", "named", "attributed", "postponed", "not worth it", "failed"]
"""How it was decided which commit is behind an event. ``measured``: by a bisection; ``named``: the window
holds one commit; ``attributed``: by the commit's own revert; ``postponed``: no minutes were left tonight."""


class NightCellDocument(Document):
    """A cell of the night.

    ``launches``: fresh server starts that measured, of ``wanted``. ``value``: the median over them of the
    headline ``metric``, in ``unit``. ``expected``: minutes that were foreseen, ``foreseen`` says from what.
    ``reason``: why it failed, was skipped or not reached; ``log`` and ``next`` of a failure.
    ``too_few_nights``: how many its series have where that is too few for any change to be told.
    """

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


class NightAlertDocument(Document):
    """An alert that the night opened, updated or closed.

    ``first``: when the first result that shows it was measured; ``effect``: relative to the level before.
    ``counts``: it is by the rules of the configuration a finding: those that are not are listed only.
    """

    id: str
    event: str
    change: AlertChange
    state: State
    cell: str
    metric: str
    shape: Shape
    cause: Cause
    effect: float
    first: str
    nights: int
    worse: bool
    recovered: bool
    counts: bool
    why: str = ""
    evidence: tuple[str, ...] = ()


class NightBisectionDocument(Document):
    """What was done to name the commit behind an event, by which of its alerts.

    ``why``: the rule that decided. ``job``: the bisection, ``outcome`` its word; ``culprit`` with its
    ``probability`` where one is named. ``minutes``: measured, of ``budget``.
    """

    event: str
    alert: str
    cell: str
    metric: str
    state: Settled
    why: str
    good: str = ""
    bad: str = ""
    commits: int = 0
    job: str = ""
    outcome: Ending | Literal[""] = ""
    culprit: ChangeDocument | None = None
    probability: float = 0.0
    sentences: tuple[str, ...] = ()
    minutes: float = 0.0
    budget: float = 0.0
    report: str = ""
    exit_code: int = 0


class NightStepDocument(Document):
    """A step of the night besides measuring. ``told``: what came of it, or why it failed."""

    name: str
    state: Literal["done", "failed"]
    told: str = ""
    where: str = ""
    next: str = ""


class NightlyDocument(LongDocument):
    """``perfbisect nightly``: how a night ended, or with ``--dry-run`` what it would do.

    ``night`` names it (its folder in the state folder), ``name`` the nightly. ``began`` and ``ended``: ISO
    8601 in UTC, ``ended`` empty while it is not over. ``commit`` is what was measured, ``branch`` the
    revision as the configuration says it. ``engine_version``, ``hardware``: as the launches told them, empty
    where none did. ``order``: the names of the cells in the order of the first launches, drawn by ``seed``.
    ``minutes``: of measuring, bisections included. ``rows``: the night's table, what is at another level than
    before. ``files``: what was written, by kind. ``exit_code``: of the worst finding; ``next``: the command
    that comes next.
    """

    shown: ClassVar[Mapping[str, int]] = {"alerts": 20, "bisections": 20, "rows": 20}
    schema_: Literal["perfbisect.nightly/1"] = Field(default="perfbisect.nightly/1", alias="schema")
    name: str
    night: str
    dry_run: bool
    began: str
    ended: str
    commit: ChangeDocument
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
    cells: tuple[NightCellDocument, ...]
    alerts: tuple[NightAlertDocument, ...]
    bisections: tuple[NightBisectionDocument, ...]
    rows: tuple[ReportRowDocument, ...]
    steps: tuple[NightStepDocument, ...]
    files: dict[str, str]
    told: tuple[str, ...]
    exit_code: int
    next: str
    folder: str


class NightlyInitDocument(Document):
    """``perfbisect nightly --init``: the file that was written."""

    schema_: Literal["perfbisect.nightly-init/1"] = Field(default="perfbisect.nightly-init/1", alias="schema")
    file: str
    repository: str
    branch: str
    content: str
    next: str
