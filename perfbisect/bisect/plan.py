"""The plan of ``perfbisect bisect``: the positions of its range, and what is asked of them.

Where the engine below the positions moves (a vLLM-Omni commit that pins another vLLM), the first position on
a new pin and the one before it are measured before the search goes on. If the step is there, the report says
so, and how to swap its packages one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

from packaging.utils import canonicalize_name
from pydantic import FiniteFloat

from perfbisect.bisect.decision.model import USUAL_NOISE, NoisePrior, Plan
from perfbisect.cells.deploy import DeployText, deploy_changes
from perfbisect.changes.history import Branch
from perfbisect.clients import CLIENTS
from perfbisect.environments.base import Builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.jobs.estimates import Noise
from perfbisect.jobs.plans import BudgetedPlan, MeasurementConfig, PlanPart, cell_data, runs_per_launch
from perfbisect.model.attempt import Costs
from perfbisect.model.cell import Cell
from perfbisect.model.change import Change, History
from perfbisect.model.metric import MetricRef, parse_metric
from perfbisect.report.template import render_sentences

Direction = Literal["regression", "improvement"]


def end_names(direction: Direction) -> tuple[str, str]:
    """What the user calls the earlier and the later end."""
    return ("good", "bad") if direction == "regression" else ("bad", "good")


class Position(PlanPart):
    """Changes with identical environments, oldest first; ``skip``: why not testable."""

    changes: tuple[Change, ...]
    skip: str = ""
    cached: bool = False
    binaries: str = ""
    """Equal where the compiled files are."""
    group: str = ""
    """The engine below, where it moves within a range: ``vllm v0.21.0``."""

    @property
    def change(self) -> Change:
        """The one that is measured: the first, which brought the difference."""
        return self.changes[0]


class RangePlan(BudgetedPlan):
    """A search of a range: position 0 is the earlier end, the last one the later; costs are in minutes."""

    positions: tuple[Position, ...]
    budget: FiniteFloat
    max_runs: int
    costs: Costs
    direction: Direction = "regression"
    """Whether the later end is worse or better."""
    workers: int = 1
    """Concurrent launches, as typed."""
    branch: Branch | None = None
    """Of a good end that is no ancestor of bad."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for position in self.positions for change in position.changes)

    @property
    def last(self) -> int:
        return len(self.positions) - 1

    @property
    def ends(self) -> tuple[Change, Change]:
        """The good end and the bad one."""
        earlier, later = self.positions[0].changes[0], self.positions[-1].changes[-1]
        return (earlier, later) if self.direction == "regression" else (later, earlier)

    def end_name(self, index: int) -> str:
        """What the user calls the end at a position."""
        return end_names(self.direction)[index > 0]

    @property
    def merge_base(self) -> int | None:
        """The position of the commit where good's branch begins."""
        if self.branch is None:
            return None
        fork = self.branch.fork.id
        return next((i for i, position in enumerate(self.positions) if position.change.id == fork), None)


class BisectPlan(RangePlan):
    """A search for the step of a metric."""

    noun: ClassVar[str] = "bisection"
    verb: Literal["bisect"] = "bisect"
    seed: int = 0
    all_steps: bool = False
    confirm_revert: bool = False
    """Measure the later end against itself without the culprit."""
    weights: str = ""
    """The file of ``--weights``."""
    prior: tuple[float, ...] | None = None
    """Weights of the positions, from that file."""
    noise: NoisePrior = USUAL_NOISE
    """What the search assumes of it before any launch."""
    channels: tuple[str, ...] = ()
    """Further metrics of its launches that the change may move, too."""

    @property
    def channel_refs(self) -> tuple[MetricRef, ...]:
        return tuple(map(parse_metric, self.channels))

    @property
    def search(self) -> Plan:
        """The plan of the search."""
        metric = self.ref.metric
        return Plan(
            n=self.last,
            sign=metric.sign if self.direction == "regression" else -metric.sign,
            min_effect=self.smallest_effect,
            costs=self.costs,
            skips=frozenset(i for i, position in enumerate(self.positions) if position.skip),
            cached=frozenset(i for i, position in enumerate(self.positions) if position.cached),
            budget=self.budget,
            max_runs=self.max_runs,
            prior=self.prior,
            all_steps=self.all_steps,
            binaries=tuple(position.binaries for position in self.positions),
            noise=self.noise,
            absolute=metric.absolute,
            exact=metric.exact and not self.all_steps,
            channels=tuple(ref.metric for ref in self.channel_refs),
        )


def channel_names(cell: Cell, asked: Sequence[str], searched: MetricRef) -> tuple[str, ...]:
    """The channels of a search: those asked for, else the cell's; none where the searched metric is exact.

    Raises:
        UsageError: a channel is unknown, or the cell's client does not report it.
    """
    refs = [parse_metric(name) for name in asked or cell.channels]
    for ref in refs:
        CLIENTS[cell.client.name].check_metric(cell, ref)
    # One launch tells its level already.
    needed = [] if searched.metric.exact else [ref for ref in refs if ref != searched]
    return tuple(dict.fromkeys(map(str, needed)))


def prior_of_noise(metric: MetricRef, noise: Noise) -> NoisePrior:
    """The prior of a search: that of all metrics, and wider for one whose noise is the machine's.

    It is never narrower: earlier launches that agree by chance must not make later ones count for more.
    """
    if not metric.metric.scheduled or noise == Noise():
        return USUAL_NOISE
    return NoisePrior(max(USUAL_NOISE.runs, noise.runs), max(USUAL_NOISE.launches, noise.launches))


RangePlanT = TypeVar("RangePlanT", bound=RangePlan)


def make_plan(
    kind: type[RangePlanT],
    *,
    cell: Cell,
    history: History,
    builder: Builder,
    metric: MetricRef,
    setting: MeasurementConfig,
    costs: Costs | None = None,
    notes: Sequence[str] = (),
    deploy: DeployText | None = None,
    weigh: Callable[[Sequence[Position]], tuple[float, ...]] | None = None,
    **options: Any,
) -> RangePlanT:
    """Merge neighbours with one environment and skip what cannot be built; ``options``: more of the plan.

    Raises:
        UsageError: nothing in the range changes the environment, or --env is wrong.
        BuildError: an end of the range cannot be built.
    """
    builder.prepare(history.changes)
    deploys = deploy_changes(cell, history.changes, deploy)
    positions = find_positions(history.changes, builder, deploys)
    unbuilt = [p.change for p in positions if not (p.skip or p.cached)]
    price = builder.price(unbuilt)
    values = {
        "suspects": [change for change in history.changes if change.id in deploys],
        "positions": positions,
        "crossings": crossings(positions),
    }
    if weigh is not None:
        options["prior"] = weigh(positions)
    plan = kind(
        cell=cell_data(cell),
        digest=cell.digest,
        setting=setting,
        metric=str(metric),
        positions=positions,
        max_runs=runs_per_launch(cell, (metric,)),
        costs=replace(costs or Costs(), build=price.minutes / max(1, len(unbuilt))),
        notes=(
            *notes,
            *render_sentences("bisect/templates/range_notes.jinja", values),
            *builder.notes(),
            *price.notes(),
        ),
        **options,
    )
    for index in (0, plan.last):
        end, position = plan.end_name(index), positions[index]
        if position.skip:
            raise BuildError(
                f"the {end} end {position.change.short} cannot be built: {position.skip}",
                next_step=f"choose another --{end}, or another --env",
            )
    if not plan.last:
        raise UsageError(
            f"nothing between {history.good.short} and {history.bad.short} changes what runs: "
            f"all {len(history.changes)} changes have one and the same environment",
            next_step="widen the range, or choose an --env that the difference enters",
        )
    return plan


def require_first_launch(plan: RangePlan) -> None:
    """Require that the budget holds the first launch: without one there is no outcome.

    Raises:
        UsageError: it does not.
    """
    runs = min(2, plan.max_runs)
    build = 0.0 if plan.positions[0].cached else plan.costs.build
    needed = build + plan.costs.launch + runs * plan.costs.run
    if needed > plan.budget:
        raise UsageError(
            f"the budget of {plan.budget:.0f} minutes does not hold one launch of about {needed:.0f}: "
            f"{build:.1f} to build, {plan.costs.launch:.1f} to start and stop, "
            f"{runs * plan.costs.run:.1f} to measure",
            next_step="a larger --budget: the plan says what is expected (--dry-run with --budget 15h)",
        )


def find_positions(
    changes: Sequence[Change], builder: Builder, deploys: frozenset[str]
) -> tuple[Position, ...]:
    """Merge neighbours with one environment; ``deploys``: ids of changes of the cell's deploy YAML.

    Raises:
        UsageError: --env is wrong.
    """
    positions: list[Position] = []
    before = ""
    for change in changes:
        refusal = builder.refuses(change)
        if refusal is not None and refusal.error:
            raise UsageError(refusal.reason, next_step="mend --env")
        if refusal is not None:
            positions.append(Position(changes=(change,), skip=refusal.reason, group=builder.group(change)))
            before = ""
            continue
        identity = builder.key(change)
        # Equal environments run equally, unless the cell takes its deploy YAML from the change.
        if identity == before and change.id not in deploys:
            last = positions[-1]
            positions[-1] = last.model_copy(update={"changes": (*last.changes, change)})
            continue
        before = identity
        positions.append(
            Position(
                changes=(change,),
                cached=builder.cached(change),
                binaries=builder.binaries(change),
                group=builder.group(change),
            )
        )
    return tuple(positions)


@dataclass(frozen=True)
class Crossing:
    """The first position on a new pin; ``parent``: the last testable one before it."""

    index: int
    parent: int
    what: str
    before: str
    after: str


def crossings(positions: Sequence[Position]) -> tuple[Crossing, ...]:
    """Where a pin moves, oldest first; positions without a pin are passed over."""
    found: list[Crossing] = []
    before = moved = ""
    parent: int | None = None
    for index, position in enumerate(positions):
        if position.group and before and position.group != before:
            # Pins may move several times among commits that cannot be tested: the first one counts as the old
            # pin.
            moved = moved or before
        before = position.group or before
        if position.skip:
            continue
        if moved and moved != before and parent is not None:
            what, _, old = moved.rpartition(" ")
            found.append(Crossing(index, parent, what, old, before.rpartition(" ")[2]))
        moved, parent = "", index
    return tuple(found)


def next_beside_pin(
    positions: Sequence[Position],
    measured: Collection[int],
    probabilities: Callable[[], Sequence[float]],
    asked: int,
) -> int | None:
    """The position beside a moved pin to measure before ``asked``: of the likely ones the nearest to it."""
    waiting = [x for x in crossings(positions) if not {x.index, x.parent} <= set(measured)]
    if not waiting:
        return None
    # Not worth two launches: a moved pin with less than half of the probability of an average commit.
    share, fair = probabilities(), 0.5 / max(1, len(positions) - 1)
    likely = [crossing for crossing in waiting if share[crossing.index] >= fair]
    if not likely:
        return None
    nearest = min(likely, key=lambda crossing: abs(crossing.index - asked))
    return nearest.parent if nearest.parent not in measured else nearest.index


_COMMON_CAUSES = ("vllm", "torch", "triton", "transformers", "flashinfer-python")
"""Packages that are most often behind a step, listed first."""


def differing(left: Sequence[str], right: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """(name, left version, right version) of packages that differ in lists of ``name==version``.

    An empty version: not there. Packages that are most often behind a step come first.
    """
    ours, theirs = _versions(left), _versions(right)
    names = [name for name in {**ours, **theirs} if ours.get(name, "") != theirs.get(name, "")]
    order = {name: place for place, name in enumerate(_COMMON_CAUSES)}
    return tuple(
        (name, ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(names, key=lambda name: (order.get(name, len(order)), name))
    )


def _versions(lines: Sequence[str]) -> Mapping[str, str]:
    rows = (line.partition("==") for line in lines)
    return {canonicalize_name(name): version for name, equals, version in rows if equals}


def launch_reason(plan: BisectPlan, kind: str, **values: object) -> str:
    """Why the policy, and not its search, launches a position."""
    reason = {"kind": kind, **values}
    (sentence,) = render_sentences("bisect/templates/reason.jinja", {"reason": reason, "plan": plan})
    return sentence


def discard_text(kind: str, **values: object) -> str:
    """Why a launch or a machine does not count, or a check was not made, in words."""
    (text,) = render_sentences("bisect/templates/discarded.jinja", {"kind": kind, "v": values})
    return text
