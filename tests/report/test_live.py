"""The live view on real pseudo-terminals, and what it makes of a job's notices."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from perfbisect.bisect.plan import BisectPlan
from perfbisect.jobs.events import JobEvent, MachineBackoff
from perfbisect.jobs.folders import Job
from perfbisect.report.console import notice_lines
from perfbisect.report.live import Area, Live, View, after, sparkline, used
from tests.fixtures.jobs import MakePlan
from tests.jobs.world import Watch, World, history, verdict
from tests.report.live_session import CHANGES, COUNT, CULPRIT, notices
from tests.report.screen import Screen, on_terminal, resize

SESSION = "tests.report.live_session"
UTF8 = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
DURABLE = [text for notice in notices() for text in notice_lines(notice)]


def kept(screen: Screen) -> tuple[str, list[str]]:
    """What is left on a screen: the lines of the job without spaces, and the bars of the posterior."""
    bars = [row for row in screen.lines if row.startswith("culprit ")]
    return "".join(row for row in screen.lines if row not in bars).replace(" ", ""), bars


def view_after(count: int | None = None) -> View:
    view = View()
    for second, notice in enumerate(list(notices())[:count]):
        view = after(view, notice, float(second))
    return view


def texts(view: View, now: float, width: int) -> list[str]:
    return [text.plain for text in Area(view, now).lines(width)]


@pytest.mark.parametrize("width", [40, 120])
def test_on_a_terminal_the_lines_stay_and_the_area_goes(width: int) -> None:
    code, out = on_terminal(SESSION, "end", width=width, env=UTF8)
    screen = Screen(width).feed(out)
    assert code == 0
    assert screen.cursor
    assert "\x1b[?25l" in out, "it was drawn"
    lines, bars = kept(screen)
    assert lines == "".join(DURABLE).replace(" ", "")
    assert [bar.split()[-2:] for bar in bars] == [
        [told, CHANGES[CULPRIT].short] for told in ("0.20", "0.40", "0.60", "0.80")
    ], "one after each launch"
    for bar in bars:
        columns = bar[9:].rsplit("  ", 1)[0]
        assert columns.index("█") / len(columns) == pytest.approx(CULPRIT / COUNT, abs=1 / len(columns))


def test_no_colour_where_none_is_wanted() -> None:
    _, out = on_terminal(SESSION, "end", width=80, env=UTF8 | {"NO_COLOR": "1"})
    assert "culprit" in out
    assert "\x1b[36m" not in out


@pytest.mark.parametrize("env", [UTF8 | {"TERM": "dumb"}, UTF8 | {"TERM": "unknown"}])
def test_a_terminal_that_cannot_be_drawn_on_gets_lines(env: dict[str, str]) -> None:
    code, out = on_terminal(SESSION, "end", width=80, env=env)
    assert code == 0
    assert "\x1b" not in out
    assert "".join(Screen(80).feed(out).lines).replace(" ", "") == "".join(DURABLE).replace(" ", "")


def test_an_exception_leaves_the_cursor() -> None:
    code, out = on_terminal(SESSION, "raise", width=80, env=UTF8)
    assert code == 1
    assert Screen(80).feed(out).cursor
    assert "ValueError: the job fails" in out


def test_ctrl_c_leaves_the_cursor_and_a_resize_is_survived() -> None:
    stage: list[str] = []

    def drawn(out: str) -> list[str]:
        """Whole rows of the area: what was read may begin and end inside of one."""
        return [row for row in out[len(stage[0]) :].split("\n")[1:-1] if "─" in row]

    def meanwhile(out: str, process: int, terminal: int) -> None:
        if not stage and "discarded run" in out:
            resize(terminal, 50)
            stage.append(out)
        elif len(stage) == 1 and any(row.count("─") == 49 for row in drawn(out)):
            os.kill(process, signal.SIGINT)
            stage.append(out)

    code, out = on_terminal(SESSION, "wait", width=100, env=UTF8, meanwhile=meanwhile)
    assert len(stage) == 2, "it is drawn as wide as the terminal is now"
    assert code == -signal.SIGINT
    assert Screen(100).feed(out).cursor


def test_without_a_terminal_there_are_lines_alone() -> None:
    out = io.StringIO()
    with Live(Console(file=out, width=60), lambda: 0.0) as sink:
        for notice in notices():
            sink(notice)
    assert out.getvalue().splitlines() == DURABLE


def test_the_area_is_drawn_with_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it lags behind the lines above it by as much as a second, or a launch."""
    console = Console(file=io.StringIO(), force_terminal=True, width=90, legacy_windows=False)
    with Live(console, lambda: 0.0) as sink:
        drawn: list[View] = []
        monkeypatch.setattr(sink._area, "refresh", lambda: drawn.append(sink._view))
        for notice in notices():
            sink(notice)
            assert drawn[-1] == sink._view
    assert len(drawn) >= len(list(notices()))


def test_a_whole_bisection_is_shown(
    plan_for: MakePlan, new_job: Callable[[BisectPlan, Watch, World], Job]
) -> None:
    world, watch, out = World(history(16).changes, slow=11, factor=1.3), Watch(), io.StringIO()
    console = Console(file=out, force_terminal=True, width=90, color_system=None, legacy_windows=False)
    with Live(console, lambda: 0.0) as sink:

        class Both(list[JobEvent]):
            def append(self, notice: JobEvent) -> None:
                super().append(notice)
                sink(notice)

        watch.notices = Both()
        job = new_job(plan_for(world), watch, world)
        report = verdict(job, watch, world)
    assert report.outcome == "found"
    lines = [text for notice in watch.notices for text in notice_lines(notice)]
    screen = Screen(90).feed(out.getvalue().replace("\n", "\r\n"))
    assert screen.cursor
    left, bars = kept(screen)
    assert left == "".join(lines).replace(" ", "")
    assert report.culprit is not None
    assert bars[-1].split()[-1] == report.culprit.short


@pytest.mark.parametrize("width", [10, 20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    view = view_after(15)
    with console.capture() as captured:
        console.print(Area(view, 100.0))
    rows = captured.get().splitlines()
    assert len(rows) >= 8
    assert all(cell_len(row) <= width for row in rows)
    assert all(character.isprintable() for row in rows for character in row)
    assert "\u202e" not in captured.get()


def test_the_area_says_what_is_believed_what_runs_and_what_is_left() -> None:
    view = view_after(15)
    shown = "\n".join(texts(view, 74.0, 100))
    assert "gpu0" in shown
    assert "#2 171717171717 23/23 run 1 of 2 1:00, 1:04 in all" in shown
    assert "search: most bits a minute" in shown
    assert CHANGES[CULPRIT].short in shown
    assert "0.20" in shown
    assert "P(no change)" in shown
    assert "last     #1 11.00 ms" in shown
    assert "2.1 min of 60.0 min, 57.9 min left, 1.2 min by the clock" in shown
    assert used(view, 74.0) == pytest.approx(1.0 + 64 / 60)


def test_marks_stand_below_their_positions() -> None:
    rows = {text.plain[:9].strip(): text.plain[9:] for text in Area(view_after(15), 0.0).lines(100)}
    assert len(rows["culprit"]) == len(rows["measured"]) == COUNT
    assert rows["measured"] == "o" + " " * 22 + "^"
    assert rows["culprit"].index("█") == CULPRIT


def test_a_machine_that_failed_is_waited_for() -> None:
    count = next(i for i, n in enumerate(notices()) if isinstance(n, MachineBackoff)) + 1
    view = view_after(count)
    assert any("20 s left: no free memory" in text for text in texts(view, count - 1 + 10.0, 100))
    later = view_after(None)
    assert later.outcomes == {0: "measured", COUNT - 1: "measured", 12: "failed", CULPRIT: "measured"}


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [
        ((0.0, 0.5, 1.0), 10, " ▄█"),
        ((0.0, 0.0), 10, "  "),
        ((0.1, 0.1, 0.4, 0.4), 2, "▂█"),
        ((0.02, 1.0), 5, "▁█"),
        ((0.001, 1.0), 5, " █"),
    ],
)
def test_a_sparkline_puts_neighbours_together(values: tuple[float, ...], width: int, shown: str) -> None:
    assert sparkline(values, width, " ▁▂▃▄▅▆▇█") == shown


def test_plain_characters_where_there_is_no_other_encoding() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(Area(view_after(15), 0.0))
    assert captured.get().isascii()
    assert "culprit" in captured.get()
