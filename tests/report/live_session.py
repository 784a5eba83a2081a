"""A session for the live view to show: ``python -m tests.report.live_session end|raise|wait``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rich.console import Console

from perfbisect.jobs.events import JobEvent, JobNote, LaunchEnded, LaunchStarted, MachineBackoff, PhaseStarted
from perfbisect.jobs.replay import Launch, LaunchRequest
from perfbisect.model.change import Change
from perfbisect.report.console import CandidatesUpdated
from perfbisect.report.live import Live

COUNT = 24
CULPRIT = 17
CHANGES = tuple(
    Change(
        id=f"{i:02x}" * 20,
        subject=f"Change {i} [b]\x1b[2Jred[/b] \u202e" + "x" * 90,
    )
    for i in range(COUNT)
)


def believed(share: float) -> CandidatesUpdated:
    rest = (1 - share) / (COUNT - 2)
    p = [0.0] + [share if i == CULPRIT else rest for i in range(1, COUNT)]
    return CandidatesUpdated(tuple((change.short, change.subject) for change in CHANGES), tuple(p), 0.01)


def launched(number: int, position: int, slot: str, *, failed: bool = False) -> LaunchEnded:
    launch = Launch(
        number, f"a-{number}", position, CHANGES[position], "search", runs=1, why="", folder="",
        started_at="", slot=slot, outcome="failed" if failed else "measured", minutes=1.0,
        value=None if failed else 10.0 + number, values=() if failed else (10.0 + number,),
        reason="launch: died" if failed else "", fault="change" if failed else "",
    )  # fmt: skip
    return LaunchEnded(launch, "ms", float(number), 60.0, 0.0)


def notices() -> Iterator[JobEvent]:
    """Launches on two slots, their phases, a failure of a change and one of the machine."""
    yield JobNote("a note with a [bold]bracket[/bold]")
    for number, position in enumerate((0, COUNT - 1, 12, CULPRIT), 1):
        slot = f"gpu{number % 2}"
        request = LaunchRequest(position, CHANGES[position], "search", 2, "most bits a minute")
        yield LaunchStarted(number, request, COUNT - 1, slot)
        for phase in ("build", "launch", "ready", "warm"):
            yield PhaseStarted(phase, {"seconds": 1.0}, slot)
        for run in (1, 2):
            yield PhaseStarted("bench", {"run": run, "of": 2, "seconds": 1.0}, slot)
        yield launched(number, position, slot, failed=position == 12)
        yield believed(min(0.95, 0.2 * number))
        if number == 2:
            yield MachineBackoff(30.0, "no free memory", "gpu0")


def main(how: str) -> None:
    with Live(Console(stderr=True), time.monotonic) as sink:
        for number, notice in enumerate(notices()):
            sink(notice)
            if number == 13 and how == "raise":
                raise ValueError("the job fails")
            if number == 13 and how == "wait":
                time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
