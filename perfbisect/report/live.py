"""The live view: on a terminal, an area below the lines of a job that says what is believed and what runs.

The lines are those of :mod:`perfbisect.report.console`; they stay in the scrollback, the area does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live as RichLive
from rich.text import Text

from perfbisect.common.quantities import minutes, probability, with_unit
from perfbisect.common.text import line
from perfbisect.jobs.documents import LaunchDocument
from perfbisect.jobs.events import JobEvent
from perfbisect.report.console import Running, View, after, notice_lines, used

PER_SECOND: Final = 1.0
"""Redraws a second: enough for a clock, too few to be noise to a bench beside it."""

_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_LEADING = 4
_LABEL = 9


class Live:
    """A job's sink that draws while it is entered: ``with Live(console, clock) as sink: bisect(job, ...)``.

    Without a terminal that can be drawn on it writes lines alone. Notices may come from several threads.
    ``clock`` gives seconds and only goes on (:func:`time.monotonic`); ``verbose``: the phases as lines too.
    """

    def __init__(self, console: Console, clock: Callable[[], float], *, verbose: bool = False) -> None:
        self._console, self._clock, self._verbose = console, clock, verbose
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
        with self._lock:
            self._view = after(self._view, notice, self._clock())
            for text in notice_lines(notice, verbose=self._verbose):
                # As text alone: what others wrote is no markup, and a long line is left to the terminal.
                self._console.print(Text(text), soft_wrap=True)


class Area:
    """The view at a moment, in as many columns as there are."""

    def __init__(self, view: View, now: float) -> None:
        self._view, self._now = view, now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        width = max(10, options.max_width - 1)
        for text in area(self._view, self._now, width, ascii_only=options.ascii_only):
            if options.ascii_only:
                text.plain = text.plain.encode("ascii", "replace").decode("ascii")
            text.no_wrap = True
            text.truncate(width, overflow="crop" if options.ascii_only else "ellipsis")
            yield text


def area(view: View, now: float, width: int, *, ascii_only: bool = False) -> Iterator[Text]:
    """The lines of the view: what is believed, what runs, what it has cost."""
    yield Text("-" * width if ascii_only else "─" * width, style="dim")
    ramp = _ASCII if ascii_only else _BLOCKS
    if len(view.probabilities) > 1:
        yield from _posterior(view, width, ramp)
    for slot, attempt in sorted(view.running.items()):
        yield from _attempt(slot, attempt, now, width)
    for slot, (why, until) in sorted(view.waiting.items()):
        left = max(0.0, until - now)
        yield _row(slot or "waiting", [(f"{left:.0f} s left: ", "bold"), (line(why), "")])
    if view.last:
        values = " | ".join(f"#{x.number} {_value(x, view.unit)}" for x in view.last)
        yield _row("last", [(values, "")])
    yield from _budget(view, now, width, ramp)


def sparkline(values: Sequence[float], width: int, ramp: str) -> str:
    """One character for each value, or for as many neighbours together as fit; the largest is full."""
    sums = [sum(values[i] for i in part) for part in _parts(len(values), width)]
    top = max(sums, default=0.0)
    if top <= 0:
        return ramp[0] * len(sums)
    # What is believed at all is seen: the lowest mark is for one per cent of the top.
    return "".join(
        ramp[0] if value < top * 0.01 else ramp[max(1, round(value / top * (len(ramp) - 1)))]
        for value in sums
    )


def _parts(count: int, width: int) -> list[range]:
    columns = max(1, min(count, width))
    edges = [count * i // columns for i in range(columns + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _posterior(view: View, width: int, ramp: str) -> Iterator[Text]:
    p, room = view.probabilities, width - _LABEL
    yield _row("culprit", [(sparkline(p, room, ramp), "cyan")])
    here = {x.position for x in view.running.values() if x.of}
    marks = "".join(_mark(part, view, here) for part in _parts(len(p), room))
    yield _row("measured", [(marks, "dim")])
    best = sorted(range(1, len(p)), key=lambda i: -p[i])[:_LEADING]
    bar = max(4, min(20, width // 6))
    for index in (i for i in best if p[i] >= 0.005):
        filled = ramp[-1] * max(1, round(min(1.0, p[index]) * bar))
        yield _row(
            "",
            [(f"{probability(p[index]):<5} ", "bold"), (f"{filled:<{bar}} ", "cyan"), *_named(view, index)],
        )
    yield _row("", [(f"{probability(view.none):<5} ", "bold"), ("P(no change)", "dim")])


def _mark(part: Iterable[int], view: View, here: set[int]) -> str:
    """Under a column of the posterior: is one of its positions running, measured, skipped?"""
    indices = list(part)
    if any(i in here for i in indices):
        return "^"
    outcomes = {view.seen.get(i, "") for i in indices}
    return "o" if "measured" in outcomes else "x" if "failed" in outcomes else " "


def _named(view: View, index: int) -> list[tuple[str, str]]:
    name, subject = view.candidates[index]
    return [(line(name, 12), "bold"), (f" {line(subject, 120)}", "")]


def _attempt(slot: str, attempt: Running, now: float, width: int) -> Iterator[Text]:
    of = f" {attempt.position}/{attempt.of}" if attempt.of else ""
    phase = attempt.phase + (f" of {attempt.runs}" if attempt.run else "")
    yield _row(
        slot or "now",
        [
            (f"#{attempt.number} {line(attempt.change, 12)}{of} ", "bold"),
            (f"{phase} {_clock(now - attempt.since)}", "green"),
            (f", {_clock(now - attempt.began)} in all" if width >= 60 else "", "dim"),
        ],
    )
    if width >= 60 and attempt.subject:
        yield _row("", [(line(attempt.subject), "")])
    yield _row("", [(f"{attempt.purpose}: {line(attempt.why)}", "dim")])


def _budget(view: View, now: float, width: int, ramp: str) -> Iterator[Text]:
    spent, began = used(view, now), now if view.began is None else view.began
    passed = f", {minutes((now - began) / 60)} by the clock"
    if not view.budget:
        yield _row("used", [(minutes(spent) + passed, "")])
        return
    share = min(1.0, spent / view.budget)
    bar = max(4, min(20, width // 6))
    filled = ramp[-1] * round(share * bar)
    left = f"{minutes(max(0.0, view.budget - spent))} left"
    used_text = f" {minutes(spent)} of {minutes(view.budget)}, {left}"
    yield _row(
        "budget", [(f"{filled:<{bar}}", "yellow"), (used_text, ""), (passed if width >= 80 else "", "dim")]
    )


def _value(launch: LaunchDocument, unit: str) -> str:
    return launch.outcome if launch.value is None else with_unit(launch.value, unit)


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
