"""What part of a growth stands in the diff, and where: the conclusion of a profile.

A profile explains a slowdown that launches have shown; it proves none. Nothing is attributed before a
function grew beyond chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final, Literal

from pydantic import Field

from perfbisect.explain.diff import DiffLink, DiffPlace, DiffSide, StackDiff, find_link, match_symbols
from perfbisect.explain.functions import (
    FALSE_DISCOVERY_RATE,
    RELEVANT_SHARE,
    FunctionComparison,
    FunctionGrowth,
    LaunchReading,
    SampledLaunch,
    TimeDifference,
    compare_functions,
    compare_times,
    false_discovery_rates,
    mean_times,
)
from perfbisect.explain.stacks import FunctionKey, StackFrame, StackSample
from perfbisect.explain.trace import (
    CountDifference,
    OperationKey,
    TraceProfile,
    common_steps,
    count_differences,
    kernel_family,
)
from perfbisect.jobs.documents import Document

ConclusionKind = Literal[
    "in the diff", "called from the diff", "not in the diff", "no growth seen", "no diff", "no stacks"
]
"""``no diff``: functions grew, and which lines differ is unknown; ``no stacks``: a side has no recording."""

MAJORITY: Final = 0.5
IN_DIFF: Final[tuple[DiffPlace, ...]] = ("changed line", "changed function")

_PLACES_OF: Final[Mapping[ConclusionKind, tuple[DiffPlace, ...]]] = {
    "in the diff": IN_DIFF,
    "called from the diff": (*IN_DIFF, "called from the diff"),
    "not in the diff": ("elsewhere",),
}
"""Conclusion -> places of its location."""

SettingDifference = tuple[str, str, str]
"""Name, value before, value after: of the engine's log, or of a package's version."""


@dataclass(frozen=True)
class GrowthLocation:
    """A line of the side after. ``share``: of the growth; ``is_added``: its function is new in the diff."""

    path: str
    line: int
    function: str
    share: float
    is_added: bool = False


class OperationGrowth(TimeDifference):
    """An operator, kernel or copy with its own ms in a step on both sides."""

    kind: str
    name: str
    family: str
    significant: bool


class TraceComparison(Document):
    """Steps of one name (``step``) on both sides; it is empty where they have none in common."""

    step: str = ""
    operations: tuple[OperationGrowth, ...] = ()
    counts: tuple[CountDifference, ...] = ()


class GrowthShares(Document):
    """How much of the growth is where. ``growth_ms``: a step, of functions that grew; ``shares`` sum to 1.

    ``settings``: values that differ between the sides.
    """

    kind: ConclusionKind | Literal["not compared"]
    growth_ms: float = 0.0
    shares: dict[str, float] = Field(default_factory=dict)
    settings: tuple[SettingDifference, ...] = ()


class ProfileConclusion(GrowthShares):
    """Where the growth is, in one place. ``configuration``: files of the diff that set values.

    ``basis``: what ``location`` is of; kernels and operators are found by their names.
    """

    location: GrowthLocation | None = None
    basis: Literal["functions", "operations"] = "functions"
    link: DiffLink | None = None
    """What the function of ``location`` uses of the diff, where that does not hold it."""
    configuration: tuple[str, ...] = ()

    def share(self, *places: DiffPlace) -> float:
        return sum(self.shares.get(place, 0.0) for place in places)


@dataclass(frozen=True)
class ProfileExplanation:
    """Two sides of profile launches compared."""

    functions: FunctionComparison
    conclusion: ProfileConclusion
    trace: TraceComparison


def explain_profiles(
    a: Sequence[SampledLaunch],
    b: Sequence[SampledLaunch],
    diff: StackDiff | None,
    *,
    is_slower: bool | None = None,
    traces: tuple[Sequence[TraceProfile], Sequence[TraceProfile]] = ((), ()),
    settings: Sequence[SettingDifference] = (),
) -> ProfileExplanation:
    """Compare profile launches and attribute what grew to the diff.

    ``is_slower``: whether an A/B showed that ``b`` is slower; None without one: then the profile's own total
    must have grown beyond chance.

    Raises:
        ValueError: a launch has no sample or no step.
    """
    if not a or not b:
        nothing = TimeDifference(before=0.0, after=0.0, difference=0.0, low=0.0, high=0.0)
        functions = FunctionComparison((), nothing, (len(a), len(b)))
    elif diff is None:
        functions = compare_functions(a, b)
    else:
        functions = compare_functions(a, b, diff.work("before"), diff.work("after"))
    # The step that both sides make most often: launches differ in how often they make each.
    step = next(iter(common_steps(*traces)), "")
    trace = TraceComparison(
        step=step, operations=compare_operations(*traces, step), counts=count_differences(*traces, step)
    )
    is_slower = functions.total.low > 0 if is_slower is None else is_slower
    grown = functions.grown if is_slower and functions.total.difference > 0 else ()
    files = diff.configuration if diff is not None else ()
    if not grown:
        kind: ConclusionKind = "no growth seen" if a and b else "no stacks"
        conclusion = ProfileConclusion(kind=kind, configuration=files, settings=tuple(settings))
        if diff is not None and is_slower:
            # Of a device that the engine waits for, only the trace shows that it works longer.
            conclusion = _with_symbols(conclusion, diff, trace)
    elif diff is None:
        growth = sum(row.growth for row in grown)
        conclusion = ProfileConclusion(kind="no diff", growth_ms=growth, settings=tuple(settings))
    else:
        conclusion, places = _attribute(a, b, diff, functions, grown, tuple(settings))
        conclusion = _with_symbols(conclusion, diff, trace)
        functions = functions.with_places(places)
    return ProfileExplanation(functions, conclusion, trace)


def compare_operations(
    a: Sequence[TraceProfile], b: Sequence[TraceProfile], step: str
) -> tuple[OperationGrowth, ...]:
    """Own times of operators and kernels in steps of one name, the largest growth first."""
    sides = [
        [_operation_readings(profile, step) for profile in side if profile.named(step)] for side in (a, b)
    ]
    if not all(sides):
        return ()
    rows = compare_times(sides[0], sides[1])
    rates = false_discovery_rates(p for _, p in rows.values())
    total = sum(time.before for time, _ in rows.values())
    found = (
        OperationGrowth(
            **dict(time),
            kind=kind,
            name=name,
            family=kernel_family(name),
            significant=q <= FALSE_DISCOVERY_RATE and abs(time.difference) > RELEVANT_SHARE * total,
        )
        for ((kind, name), (time, _)), q in zip(rows.items(), rates, strict=True)
    )
    return tuple(sorted(found, key=lambda row: (-row.difference, row.kind, row.name)))


def _operation_readings(profile: TraceProfile, step: str) -> dict[OperationKey, LaunchReading]:
    steps = profile.named(step)
    readings = {}
    for key in dict.fromkeys(key for own in steps for key in own.times):
        times = [own.times.get(key, 0.0) for own in steps]
        spread = variance(times) / len(times) if len(times) > 1 else fmean(times) ** 2
        readings[key] = LaunchReading(
            fmean(times), spread, float(sum(own.counts.get(key, 0) for own in steps))
        )
    return readings


_Site = tuple[FunctionKey, DiffPlace, StackFrame]


def _attribute(
    a: Sequence[SampledLaunch],
    b: Sequence[SampledLaunch],
    diff: StackDiff,
    functions: FunctionComparison,
    grown: Sequence[FunctionGrowth],
    settings: tuple[SettingDifference, ...],
) -> tuple[ProfileConclusion, dict[FunctionKey, DiffPlace]]:
    sites = _site_growth(a, b, diff)
    growth: defaultdict[DiffPlace, float] = defaultdict(float)
    lines: defaultdict[DiffPlace, defaultdict[StackFrame, float]] = defaultdict(lambda: defaultdict(float))
    places: dict[FunctionKey, DiffPlace] = {}
    for row in grown:
        own = {site: ms for site, ms in sites.items() if site[0] == row.key}
        by_place: defaultdict[DiffPlace, float] = defaultdict(float)
        for (_, place, _), ms in own.items():
            by_place[place] += ms
        # A place that lost time made room for none of the growth: it is shared among those that gained.
        gained = {place: ms for place, ms in by_place.items() if ms > 0}
        for place, ms in gained.items():
            share = row.growth * ms / sum(gained.values())
            growth[place] += share
            frames = {site[2]: ms for site, ms in own.items() if site[1] == place and ms > 0}
            for frame, part in frames.items():
                lines[place][frame] += share * part / sum(frames.values())
        places[row.key] = max(gained, key=lambda place: gained[place]) if gained else "elsewhere"
    # What surely grew in all and in no function that was named stands nowhere.
    total = max(sum(growth.values()), functions.total.low)
    growth["elsewhere"] += total - sum(growth.values())
    shares: dict[str, float] = {place: ms / total for place, ms in growth.items()}
    own_share = sum(shares.get(place, 0.0) for place in IN_DIFF)
    kind: ConclusionKind = "not in the diff"
    if own_share >= MAJORITY:
        kind = "in the diff"
    elif own_share + shares.get("called from the diff", 0.0) >= MAJORITY:
        kind = "called from the diff"
    location = _location(_PLACES_OF[kind], lines, diff, total)
    link: DiffLink | None = None
    if kind == "not in the diff" and location is not None:
        link = find_link(location.path, location.line, diff)
    return (
        ProfileConclusion(
            kind=kind,
            growth_ms=total,
            shares=shares,
            location=location,
            link=link,
            configuration=diff.configuration,
            settings=settings,
        ),
        places,
    )


def _site_growth(
    a: Sequence[SampledLaunch], b: Sequence[SampledLaunch], diff: StackDiff
) -> dict[_Site, float]:
    """Growth in ms a step by function, place and line; lines before the diff under their number after it."""
    files = diff.by_path

    def named(side: DiffSide, sample: StackSample) -> _Site:
        place, frame = diff.place(sample, side)
        if side == "before" and frame.path in files:
            frame = StackFrame(frame.function, frame.path, files[frame.path].new_number(frame.line) or 0)
        return sample.frames[-1].key, place, frame

    before = mean_times(a, diff.work("before"), lambda sample: named("before", sample))
    after = mean_times(b, diff.work("after"), lambda sample: named("after", sample))
    sites = dict.fromkeys((*before, *after))
    return {site: after.get(site, 0.0) - before.get(site, 0.0) for site in sites}


def _location(
    places: Sequence[DiffPlace],
    growth: Mapping[DiffPlace, Mapping[StackFrame, float]],
    diff: StackDiff,
    total: float,
) -> GrowthLocation | None:
    """The function with the largest part in these places, at its dearest line that still exists."""
    functions: defaultdict[FunctionKey, float] = defaultdict(float)
    lines: defaultdict[StackFrame, float] = defaultdict(float)
    for place in places:
        for frame, ms in growth.get(place, {}).items():
            functions[frame.key] += ms
            lines[frame] += ms
    if not functions:
        return None
    key = max(functions, key=lambda key: (functions[key], key))
    frames = [frame for frame in lines if frame.key == key]
    # Line 0 was removed by the diff: there is nothing to show of it.
    best = max(frames, key=lambda frame: (frame.line > 0, lines[frame], frame.line))
    span = diff.function_of(best.path, best.line, "after")
    known = {old.name for old in diff.functions(best.path, "before")}
    is_added = span is not None and span.name not in known and diff.is_changed_function(best, "after")
    return GrowthLocation(best.path, best.line, best.function, functions[key] / total, is_added)


def _with_symbols(
    conclusion: ProfileConclusion, diff: StackDiff, trace: TraceComparison
) -> ProfileConclusion:
    """Compiled code has no Python line: what grew in a trace is looked for in the diff of sources by name."""
    grown = {row.name: row.difference for row in trace.operations if row.significant and row.difference > 0}
    more = [count.name for count in trace.counts if count.exact and count.after > count.before]
    symbols = match_symbols((*grown, *more), diff)
    # A line that stacks found is better evidence than a name.
    if conclusion.kind not in ("not in the diff", "no growth seen", "no stacks") or not symbols:
        return conclusion
    named = sum(grown.get(match.operation, 0.0) for match in symbols)
    share = min(1.0, named / sum(grown.values())) if grown else 0.0
    if share < MAJORITY:
        return conclusion
    first = max(symbols, key=lambda match: grown.get(match.operation, 0.0))
    location = GrowthLocation(first.path, first.line, first.symbol, share)
    return conclusion.model_copy(update={"kind": "in the diff", "location": location, "basis": "operations"})
