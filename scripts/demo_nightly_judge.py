"""What ten nights found beside what was planted in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perfbisect.jobs.replay import Launch
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
    launches: tuple[Launch, ...]
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
    checks = (_check_slow_commit, _check_instrument, _check_nights, _check_launches)
    return tuple(check for group in checks for check in group(found))


def _opened(found: Found, metric: str) -> list[tuple[int, dict[str, Any]]]:
    return [(night, alert) for night, alert in found.alerts(metric) if alert["change"] == "opened"]


def _check_slow_commit(found: Found) -> Iterator[Check]:
    opened = _opened(found, HEADLINE)
    first = min((night for night, alert in opened if alert["worse"]), default=0)
    cells = {alert["cell"] for _, alert in opened if alert["worse"]}
    since = {alert["first"][:10] for _, alert in opened if alert["worse"]}
    holds = OPENS <= first <= LATEST and since == {f"{moment(SLOW):%Y-%m-%d}"} and cells == set(CELLS)
    words = f"on night {first}, of {len(cells)} cells, since {', '.join(sorted(since))}" if first else "never"
    yield Check("the alert opened on the right night", holds, f"{words} (night {OPENS} at the earliest)")

    sizes = [alert["effect"] for _, alert in opened]
    holds = bool(sizes) and all(abs(size - (FACTOR - 1)) < 0.1 for size in sizes)
    yield Check("it reports the planted size", holds, ", ".join(f"{size:+.1%}" for size in sizes))

    measured = [(night, one) for night, one in found.bisections() if one["state"] == "measured"]
    culprits = [bisection["culprit"] for _, bisection in measured]
    is_right = [culprit and culprit["id"] for culprit in culprits] == [found.world.slow]
    holds = is_right and measured[0][0] == min((night for night, _ in opened), default=0)
    words = "; ".join(
        f"night {night}: {bisection['outcome']} "
        f"{bisection['culprit']['short'] if bisection['culprit'] else 'no commit'}"
        f" (p {bisection['probability']:.2f}, {bisection['commits']} commits, {bisection['minutes']:.1f} min)"
        for night, bisection in measured
    )
    yield Check("its bisection began by itself and named the commit", holds, words or "none")

    named = {bisection["culprit"]["id"] for _, bisection in found.bisections() if bisection["culprit"]}
    others = sorted(sha[:12] for sha in named - {found.world.slow})
    yield Check("no other commit is named", not others, ", ".join(others) or "none")

    is_on_site = found.world.slow[:10] in found.site
    reported = [cell for cell in CELLS if cell in found.report]
    holds = is_on_site and len(reported) == len(CELLS) and "instrument" in found.report.lower()
    words = f"the report names {len(reported)} cells; the site names the commit: {is_on_site}"
    yield Check("report and site say so", holds, words)


def _check_instrument(found: Found) -> Iterator[Check]:
    opened = _opened(found, OTHER)
    causes = Counter(alert["cause"] for _, alert in opened)
    since = {alert["first"][:10] for _, alert in opened}
    events = {alert["event"] for _, alert in opened}
    examined = [bisection for _, bisection in found.bisections() if bisection["event"] in events]
    holds = set(causes) == {"instrument"} and since == {f"{moment(CLIENT):%Y-%m-%d}"}
    holds = holds and all(bisection["state"] == "not worth it" for bisection in examined)
    holds = holds and not any(alert["counts"] for _, alert in opened)
    words = ", ".join(f"{count} reported as {cause}" for cause, count in causes.items()) or "never reported"
    yield Check("the client's change is the instrument's, and no commit is named", holds, words)


def _check_nights(found: Found) -> Iterator[Check]:
    document = found.nights[BROKEN - 1]
    states = Counter(cell["state"] for cell in document["cells"])
    holds = states == {"failed": len(CELLS)} and document["commit"]["id"] == found.world.broken
    reasons = sorted({cell["reason"].splitlines()[0][:120] for cell in document["cells"] if cell["reason"]})
    yield Check(
        "the head that does not import is reported, and measures nothing", holds, next(iter(reasons), "")
    )

    idle = [found.nights[night - 1] for night, count in COMMITS.items() if not count]
    states = Counter(cell["state"] for document in idle for cell in document["cells"])
    holds = states == {"skipped": len(CELLS) * len(idle)}
    words = ", ".join(f"{count} {state}" for state, count in states.items())
    yield Check("a night without a new commit measures nothing", holds, words)

    codes = [document["ended_with"] for document in found.nights]
    holds = codes == [_expected_code(document) for document in found.nights]
    yield Check("every night ended as its worst finding says", holds, " ".join(map(str, codes)))


def _expected_code(document: dict[str, Any]) -> int:
    """3 a regression is new, 5 a cell failed, 0 nothing new."""
    if any(
        alert["change"] == "opened" and alert["counts"] and alert["worse"] for alert in document["alerts"]
    ):
        return 3
    return 5 if any(cell["state"] == "failed" for cell in document["cells"]) else 0


def _check_launches(found: Found) -> Iterator[Check]:
    finished = [launch for launch in found.launches if launch.outcome == "measured"]
    measured = [launch for launch in finished if launch.purpose == "run"]
    counted = Counter(
        (launch.change.id, launch.attempt.provenance.cell_digest)
        for launch in measured
        if launch.attempt is not None
    )
    nights = NIGHTS - 1 - sum(not count for count in COMMITS.values())
    holds = set(counted.values()) == {LAUNCHES} and len(counted) == nights * len(CELLS)
    words = f"{counted.total()} launches of {len(counted)} cells and nights"
    yield Check(f"each cell was measured {LAUNCHES} times a night, not once more", holds, words)

    lost = sum(launch.outcome == "abandoned" for launch in found.launches)
    holds = bool(found.kept) and found.kept <= {launch.id for launch in finished} and lost >= 1
    holds = holds and all(launch.outcome != "running" for launch in found.launches)
    words = f"{len(found.kept)} launches were kept, {lost} cut short and measured again"
    yield Check("what had been measured when it was killed is kept", holds, words)

    # The engine counts its own starts. The head that does not import ends before it counts itself.
    servers = {x.token for x in found.launches if x.pid and x.change.id != found.world.broken}
    holds = found.started == len(servers) and found.points == len(measured)
    words = f"{found.started} server starts, {len(servers)} in the journals; "
    words += f"{found.points} points of {len(measured)} launches"
    yield Check("journals, series and the engine's own count agree", holds, words)
