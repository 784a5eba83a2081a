"""The live view: below the lines of a job on a terminal, the posterior, running launches and the budget.

The lines are those of :mod:`perfbisect.report.console`, with bars of the posterior after each launch; they
stay in the scrollback, the area does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import TracebackType
from typing import Final, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as RichLive
from rich.text import Text

from perfbisect.common.quantities import LEAST_SHARE_LOST, minutes, percent, probability, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.events import JobEvent, LaunchEnded, LaunchStarted, MachineBackoff, PhaseStarted
from perfbisect.report.console import CandidatesUpdated, notice_lines
from perfbisect.report.terminal import fitted

PER_SECOND: Final = 1.0
"""Redraws a second, few enough not to disturb a measurement."""

_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_LEADING = 4
_KEPT = 3
_LABEL = 9
_WIDE = 60
"""Columns from which details are shown."""

_NEXT_PHASE: Final[Mapping[str, str]] = {
    "fetch": "building",
    "build": "starting",
    "launch": "starting",
    "ready": "discarded run",
    "stop": "stopped",
}
"""What a launch does after a phase."""


@dataclass(frozen=True)
class Running:
    """A launch under way since ``began``; ``since``: its phase began; ``run``: number of its run, or 0."""

    launch: LaunchStarted
    began: float
    phase: str
    since: float
    run: int = 0


@dataclass(frozen=True)
class View:
    """What is shown: the newest notices, by slot where they are of one.

    ``outcomes``: ``measured`` or ``failed`` by position; ``ended``: the last launches, the newest first;
    ``waiting``: slots that back off, with the time until when.
    """

    posterior: CandidatesUpdated | None = None
    outcomes: Mapping[int, str] = field(default_factory=dict)
    running: Mapping[str, Running] = field(default_factory=dict)
    waiting: Mapping[str, tuple[MachineBackoff, float]] = field(default_factory=dict)
    ended: tuple[LaunchEnded, ...] = ()
    began: float | None = None


def after(view: View, notice: JobEvent, now: float) -> View:
    """The view after a notice that came at ``now``."""
    if view.began is None:
        view = replace(view, began=now)
    if isinstance(notice, CandidatesUpdated):
        untestable = dict.fromkeys(notice.untestable, "failed")
        return replace(view, posterior=notice, outcomes=untestable | dict(view.outcomes))
    if isinstance(notice, LaunchStarted):
        running = {**view.running, notice.slot: Running(notice, now, "building", now)}
        return replace(view, running=running, waiting=_without(view.waiting, notice.slot))
    if isinstance(notice, PhaseStarted):
        attempt, phase = view.running.get(notice.slot), doing(notice)
        if attempt is None or phase is None:
            return view
        changed = replace(attempt, phase=phase[0], run=phase[1], since=now)
        return replace(view, running={**view.running, notice.slot: changed})
    if isinstance(notice, LaunchEnded):
        launch, outcomes = notice.launch, dict(view.outcomes)
        if launch.fault in ("", "change") and outcomes.get(launch.position) != "measured":
            outcomes[launch.position] = "measured" if launch.value is not None else "failed"
        running = _without(view.running, launch.slot)
        return replace(view, outcomes=outcomes, running=running, ended=(notice, *view.ended)[:_KEPT])
    if isinstance(notice, MachineBackoff):
        return replace(view, waiting={**view.waiting, notice.slot: (notice, now + notice.seconds)})
    return view


def used(view: View, now: float) -> float:
    """Minutes spent, those of running launches included."""
    ended = view.ended[0].used if view.ended else 0.0
    return ended + sum(now - attempt.began for attempt in view.running.values()) / 60


_Value = TypeVar("_Value")


def _without(by_slot: Mapping[str, _Value], slot: str) -> dict[str, _Value]:
    return {name: value for name, value in by_slot.items() if name != slot}


def doing(notice: PhaseStarted) -> tuple[str, int] | None:
    """What the launch does now, and the number of its run; None where the notice does not say."""
    if notice.phase not in ("warm", "bench"):
        phase = _NEXT_PHASE.get(notice.phase)
        return None if phase is None else (phase, 0)
    done = notice.detail.get("run", 0) if notice.phase == "bench" else 0
    of = notice.detail.get("of")
    if not isinstance(done, int):
        return None
    return ("stopping", 0) if isinstance(of, int) and done >= of else (f"run {done + 1}", done + 1)


class Live:
    """A job's listener that draws while it is entered; without a capable terminal it writes lines alone.

    Notices may come from several threads. ``clock``: seconds, monotonic.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._view = View()
        self._lock = threading.Lock()
        self._draws = console.is_terminal and not console.is_dumb_terminal
        self._area = RichLive(
            console=console,
            get_renderable=lambda: Area(self._view, clock()),
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Live:
        if self._draws:
            self._area.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._draws:
            self._area.stop()

    def __call__(self, notice: JobEvent) -> None:
        # Slots report from their own threads; rich draws from another one.
        with self._lock:
            before, self._view = self._view.posterior, after(self._view, notice, self._clock())
            # Before the first launch it is the prior, and between launches it is what was printed.
            known = before.probabilities if before else ()
            if isinstance(notice, CandidatesUpdated) and self._view.ended and notice.probabilities != known:
                self._print_posterior(notice)
            for text in notice_lines(notice):
                # As text alone: what others wrote is no markup.
                for row in fitted(text, self._console.width) if self._draws else [text]:
                    self._console.print(Text(row), soft_wrap=True)
            if self._draws:
                self._area.refresh()  # the lines above are ahead of it otherwise

    def _print_posterior(self, posterior: CandidatesUpdated) -> None:
        """On a terminal: a bar for each candidate, or for neighbours together, and the likeliest one."""
        if not self._draws:
            return
        p, ramp = posterior.probabilities, _ASCII if self._console.options.ascii_only else _BLOCKS
        best = max(range(len(p)), key=p.__getitem__)
        told = f"  {probability(p[best])} {line(posterior.candidates[best][0], 12)}"
        bars = sparkline(p, max(1, self._console.width - 1 - _LABEL - len(told)), ramp)
        row = _row("culprit", [(bars, "cyan"), (told, "")])
        self._console.print(row, no_wrap=True, overflow="crop", crop=True)


class Area:
    """The view at a moment, as wide as the console."""

    def __init__(self, view: View, now: float) -> None:
        self._view, self._now = view, now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        width = max(10, options.max_width - 1)
        for text in self.lines(width, ascii_only=options.ascii_only):
            if options.ascii_only:
                text.plain = text.plain.encode("ascii", "replace").decode("ascii")
            text.no_wrap = True
            text.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            yield text

    def lines(self, width: int, *, ascii_only: bool = False) -> Iterator[Text]:
        """Posterior, running launches, budget."""
        yield Text("-" * width if ascii_only else "─" * width, style="dim")
        view, ramp = self._view, _ASCII if ascii_only else _BLOCKS
        if view.posterior is not None and len(view.posterior.probabilities) > 1:
            yield from self._posterior(view.posterior, width, ramp)
        for slot, attempt in sorted(view.running.items()):
            yield from self._attempt(slot, attempt, width)
        for slot, (backoff, until) in sorted(view.waiting.items()):
            left = max(0.0, until - self._now)
            yield _row(slot or "waiting", [(f"{left:.0f} s left: ", "bold"), (line(backoff.reason), "")])
        if view.ended:
            yield _row("last", [(" | ".join(_value(ended) for ended in view.ended), "")])
        yield from self._budget(width, ramp)

    def _posterior(self, posterior: CandidatesUpdated, width: int, ramp: str) -> Iterator[Text]:
        p, room = posterior.probabilities, width - _LABEL
        yield _row("culprit", [(sparkline(p, room, ramp), "cyan")])
        launches = (attempt.launch for attempt in self._view.running.values())
        running = {launch.request.position for launch in launches if launch.last}
        marks = "".join(_mark(part, self._view.outcomes, running) for part in _parts(len(p), room))
        yield _row("measured", [(marks, "dim")])
        best = sorted(range(1, len(p)), key=lambda i: -p[i])[:_LEADING]
        for index in (i for i in best if p[i] >= 0.005):
            name, subject = posterior.candidates[index]
            bar = _bar(min(1.0, p[index]), width, ramp, least=1)
            shown = [(f"{probability(p[index]):<5} ", "bold"), (f"{bar} ", "cyan")]
            yield _row("", [*shown, (line(name, 12), "bold"), (f" {line(subject, 120)}", "")])
        yield _row("", [(f"{probability(posterior.none):<5} ", "bold"), ("P(no change)", "dim")])

    def _attempt(self, slot: str, attempt: Running, width: int) -> Iterator[Text]:
        launch, request = attempt.launch, attempt.launch.request
        of = f" {request.position}/{launch.last}" if launch.last else ""
        phase = attempt.phase + (f" of {request.runs}" if attempt.run else "")
        in_all = f", {_clock(self._now - attempt.began)} in all" if width >= _WIDE else ""
        parts = [
            (f"#{launch.number} {line(request.change.short, 12)}{of} ", "bold"),
            (f"{phase} {_clock(self._now - attempt.since)}", "green"),
            (in_all, "dim"),
        ]
        yield _row(slot or "now", parts)
        if width >= _WIDE and request.change.subject:
            yield _row("", [(line(request.change.subject), "")])
        yield _row("", [(f"{request.purpose}: {line(request.why)}", "dim")])

    def _budget(self, width: int, ramp: str) -> Iterator[Text]:
        view, now = self._view, self._now
        spent, began = used(view, now), now if view.began is None else view.began
        budget, lost = (view.ended[0].budget, view.ended[0].lost) if view.ended else (0.0, 0.0)
        passed = f", {minutes((now - began) / 60)} by the clock"
        if not budget:
            yield _row("used", [(minutes(spent) + passed, "")])
        else:
            left = f" {minutes(spent)} of {minutes(budget)}, {minutes(max(0.0, budget - spent))} left"
            bar = _bar(min(1.0, spent / budget), width, ramp)
            yield _row("budget", [(bar, "yellow"), (left, ""), (passed if width >= 80 else "", "dim")])
        if lost and lost / (budget or spent) >= LEAST_SHARE_LOST:
            share = percent(lost / (budget or spent), False) + (" of the budget" if budget else "")
            yield _row("lost", [(f"{minutes(lost)}, {share}: discarded or failed", "")])


def sparkline(values: Sequence[float], width: int, ramp: str) -> str:
    """One character for each value, or for as many neighbours together as fit; the largest is full."""
    sums = [sum(values[i] for i in part) for part in _parts(len(values), width)]
    top = max(sums, default=0.0)
    if top <= 0:
        return ramp[0] * len(sums)
    # From one per cent of the top on, a value has at least the lowest mark.
    return "".join(
        ramp[0] if value < top * 0.01 else ramp[max(1, round(value / top * (len(ramp) - 1)))]
        for value in sums
    )


def _parts(count: int, width: int) -> list[range]:
    columns = max(1, min(count, width))
    edges = [count * i // columns for i in range(columns + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _bar(share: float, width: int, ramp: str, least: int = 0) -> str:
    columns = max(4, min(20, width // 6))
    return f"{ramp[-1] * max(least, round(share * columns)):<{columns}}"


def _mark(part: Iterable[int], outcomes: Mapping[int, str], running: set[int]) -> str:
    """The mark below a column: running, measured or failed."""
    indices = list(part)
    if any(i in running for i in indices):
        return "^"
    found = {outcomes.get(i, "") for i in indices}
    return "o" if "measured" in found else "x" if "failed" in found else " "


def _value(ended: LaunchEnded) -> str:
    launch = ended.launch
    value = launch.outcome if launch.value is None else with_unit(launch.value, ended.unit)
    return f"#{launch.number} {value}"


def _row(label: str, parts: Iterable[tuple[str, str]]) -> Text:
    shown = line(label, _LABEL - 1)
    out = Text(shown + " " * max(1, _LABEL - cell_len(shown)), style="")
    out.stylize("dim")
    for text, style in parts:
        out.append(text, style=style or None)
    return out


def _clock(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    whole = max(0, int(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
