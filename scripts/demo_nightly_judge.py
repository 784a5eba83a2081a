"""What ten nights found beside what was planted in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perfbisect.jobs.replay import LaunchRecord
from scripts.demo_nightly_world import (
    BROKEN,
    CELLS,
    CLIENT,
    COMMITS,
    FACTOR,
    LATEST,
    LAUNCHES,
    NIGHTS,
    OPENS,
    SLOW,
    World,
    moment,
)

HEADLINE, OTHER = "ttft", "tpot"
"""What the slow commit slows, and what the client counts otherwise."""


@dataclass(frozen=True)
class Found:
    """``nights``: the documents in order; ``launches``: of all jobs; ``kept``: attempts that had ended when
    the night was killed; ``started``: server starts as the engine counts them; ``points``: of the store;
    ``report``, ``site``: what is written there."""

    world: World
    nights: tuple[dict[str, Any], ...]
    launches: tuple[LaunchRecord, ...]
    kept: frozenset[str]
    started: int
    points: int
    report: str
    site: str

    def alerts(self, metric: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """Alerts of a metric's medians, with their night."""
        for night, document in enumerate(self.nights, 1):
            for alert in document["alerts"]:
                if alert["metric"] == metric:
                    yield night, alert

    def bisections(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for night, document in enumerate(self.nights, 1):
            for bisection in document["bisections"]:
                yield night, bisection


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    what: str
    holds: bool
    words: str


def judge(found: Found) -> tuple[Check, ...]:
    """Check everything that must hold."""
    return (
        _check_opened(found),
        _check_size(found),
        _check_culprit(found),
        _check_other_culprits(found),
        _check_instrument(found),
        _check_broken_head(found),
        _check_idle_night(found),
        _check_launch_counts(found),
        _check_kept_launches(found),
        _check_starts(found),
        _check_exit_codes(found),
        _check_report(found),
    )


def _check_opened(found: Found) -> Check:
    opened = [(night, a) for night, a in found.alerts(HEADLINE) if a["change"] == "opened" and a["worse"]]
    first = min((night for night, _ in opened), default=0)
    cells = {alert["cell"] for _, alert in opened}
    since = {alert["first"][:10] for _, alert in opened}
    holds = OPENS <= first <= LATEST and since == {f"{moment(SLOW):%Y-%m-%d}"} and cells == set(CELLS)
    detail = (
        f"on night {first}, of {len(cells)} cells, since {', '.join(sorted(since))}" if first else "never"
    )
    return Check("the alert opened on the right night", holds, f"{detail} (night {OPENS} at the earliest)")


def _check_size(found: Found) -> Check:
    sizes = [a["effect"] for _, a in found.alerts(HEADLINE) if a["change"] == "opened"]
    holds = bool(sizes) and all(abs(size - (FACTOR - 1)) < 0.1 for size in sizes)
    return Check("it reports the planted size", holds, ", ".join(f"{size:+.1%}" for size in sizes))


def _check_culprit(found: Found) -> Check:
    done = [(night, one) for night, one in found.bisections() if one["state"] == "measured"]
    words = [
        f"night {night}: {one['outcome']} {one['culprit']['short'] if one['culprit'] else 'no commit'}"
        f" (p {one['probability']:.2f}, {one['commits']} commits, {one['minutes']:.1f} min)"
        for night, one in done
    ]
    right = [one for night, one in done if one["culprit"] and one["culprit"]["id"] == found.world.slow]
    opened = [night for night, a in found.alerts(HEADLINE) if a["change"] == "opened"]
    holds = len(done) == len(right) == 1 and done[0][0] == min(opened, default=0)
    return Check("its bisection began by itself and named the commit", holds, "; ".join(words) or "none")


def _check_other_culprits(found: Found) -> Check:
    culprits = {one["culprit"]["id"] for _, one in found.bisections() if one["culprit"]}
    others = sorted(sha[:12] for sha in culprits - {found.world.slow})
    return Check("no other commit is named", not others, ", ".join(others) or "none")


def _check_instrument(found: Found) -> Check:
    opened = [(night, alert) for night, alert in found.alerts(OTHER) if alert["change"] == "opened"]
    causes = Counter(alert["cause"] for _, alert in opened)
    since = {alert["first"][:10] for _, alert in opened}
    events = {alert["event"] for _, alert in opened}
    bisected = [
        one for _, one in found.bisections() if one["event"] in events and one["state"] != "not worth it"
    ]
    holds = set(causes) == {"instrument"} and since == {f"{moment(CLIENT):%Y-%m-%d}"}
    holds = holds and not bisected and not any(alert["counts"] for _, alert in opened)
    words = ", ".join(f"{count} reported as {cause}" for cause, count in causes.items()) or "never reported"
    return Check("the client's change is the instrument's, and no commit is named", holds, words)


def _check_broken_head(found: Found) -> Check:
    document = found.nights[BROKEN - 1]
    states = Counter(cell["state"] for cell in document["cells"])
    holds = states == {"failed": len(CELLS)} and document["commit"]["id"] == found.world.broken
    reasons = sorted({cell["reason"].splitlines()[0][:120] for cell in document["cells"] if cell["reason"]})
    return Check(
        "the head that does not import is reported, and measures nothing",
        holds,
        reasons[0] if reasons else "",
    )


def _check_idle_night(found: Found) -> Check:
    idle = [night for night, count in COMMITS.items() if not count]
    states = Counter(cell["state"] for night in idle for cell in found.nights[night - 1]["cells"])
    holds = states == {"skipped": len(CELLS) * len(idle)}
    return Check(
        "a night without a new commit measures nothing",
        holds,
        ", ".join(f"{n} {state}" for state, n in states.items()),
    )


def _check_launch_counts(found: Found) -> Check:
    """Every cell and commit of a night has exactly its launches."""
    counted: Counter[tuple[str, str]] = Counter()
    for launch in found.launches:
        if launch.end == "finished" and launch.purpose == "run" and launch.attempt is not None:
            counted[launch.change_id, launch.attempt.provenance.cell_digest] += 1
    nights = NIGHTS - 1 - sum(not count for count in COMMITS.values())
    holds = set(counted.values()) == {LAUNCHES} and len(counted) == nights * len(CELLS)
    detail = f"{sum(counted.values())} launches of {len(counted)} cells and nights"
    return Check(f"each cell was measured {LAUNCHES} times a night, not once more", holds, detail)


def _check_kept_launches(found: Found) -> Check:
    finished = {launch.attempt_id for launch in found.launches if launch.end == "finished"}
    lost = sum(launch.end == "abandoned" for launch in found.launches)
    holds = bool(found.kept) and found.kept <= finished and lost >= 1
    holds = holds and all(launch.end is not None for launch in found.launches)
    detail = f"{len(found.kept)} launches were kept, {lost} cut short and measured again"
    return Check("what had been measured when it was killed is kept", holds, detail)


def _check_starts(found: Found) -> Check:
    """The engine counts its own starts: no server was started that no journal knows. The head that does not
    import ends before it counts itself."""
    servers = {x.token for x in found.launches if x.pid and x.change_id != found.world.broken}
    measured = sum(launch.end == "finished" and launch.purpose == "run" for launch in found.launches)
    holds = found.started == len(servers) and found.points == measured
    detail = (
        f"{found.started} server starts, {len(servers)} in the journals; "
        f"{found.points} points of {measured} launches"
    )
    return Check("journals, series and the engine's own count agree", holds, detail)


def _check_exit_codes(found: Found) -> Check:
    holds = all(document["ended_with"] == _expected_code(document) for document in found.nights)
    codes = [document["ended_with"] for document in found.nights]
    return Check("every night ended as its worst finding says", holds, " ".join(map(str, codes)))


def _expected_code(document: dict[str, Any]) -> int:
    """3 a regression is new, 5 a cell failed, 0 nothing new."""
    new = [a for a in document["alerts"] if a["change"] == "opened" and a["counts"] and a["worse"]]
    if new:
        return 3
    return 5 if any(cell["state"] == "failed" for cell in document["cells"]) else 0


def _check_report(found: Found) -> Check:
    named = found.world.slow[:10] in found.site
    cells = [cell for cell in CELLS if cell in found.report]
    holds = named and len(cells) == len(CELLS) and "instrument" in found.report.lower()
    detail = (
        f"the report names {len(cells)} cells; the site {'names' if named else 'does not name'} the commit"
    )
    return Check("report and site say so", holds, detail)
