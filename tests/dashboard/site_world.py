"""Sites with known content: nights of made-up cells with planted changes, and texts that mean harm."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np

from perfbisect.bisect.result import BisectResult
from perfbisect.commands.outcomes import SiteBisection
from perfbisect.dashboard.collect import (
    Site,
    SiteCell,
    SiteMark,
    SitePoint,
    SiteSeries,
    SmallChange,
)
from perfbisect.jobs.documents import MetricDocument
from perfbisect.model.commit_details import BlastRadius, Evidence, Factor, Ranking, Suspect
from perfbisect.series.alerts import Alert, AlertPlace
from perfbisect.series.detection.model import SeriesLevel
from perfbisect.series.suspects.job import SuspectsDocument
from tests.series.made_alert import made_alert

HARM = (
    "</script><script>window.harmed=1</script><img src=x onerror=window.harmed=2>'\"&\\ {{7*7}} \u202eb\u2028"
)
"""Text of others, wherever it comes from: the name of a build or a cell, a commit's subject, a reason."""

START = datetime(2026, 1, 1, 19, 0, 0, tzinfo=timezone.utc)

TTFT = MetricDocument(
    name="ttft", display="time to first token", unit="ms", direction="lower", smallest_effect=0.05
)
THROUGHPUT = MetricDocument(
    name="output_throughput",
    display="output token throughput",
    unit="tok/s",
    direction="higher",
    smallest_effect=0.03,
)
ACCEPTED = MetricDocument(
    name="spec_decode_acceptance_rate",
    display="share of draft tokens accepted",
    unit="share",
    direction="higher",
    smallest_effect=0.02,
)
METRICS = (TTFT, THROUGHPUT, ACCEPTED)
BASES = {"ttft": 120.0, "output_throughput": 2400.0, "spec_decode_acceptance_rate": 0.62}
FAMILIES = (("text", "Llama-3.1-8B"), ("tts", "Qwen3-TTS-1.7B"), ("omni", "Qwen3-Omni-30B"))
LOADS = ("c1", "c16", "c64")


def night(at: int) -> str:
    """The moment of a night."""
    return (START + timedelta(days=at)).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha(at: int) -> str:
    return f"{at * 0x9E3779B97F4A7C15 % 2**64:016x}".ljust(40, "a")


def points(nights: int, harm: bool = False) -> tuple[SitePoint, ...]:
    return tuple(
        SitePoint(
            build=HARM if harm and at % 2 else f"nightly#{6000 + at}",
            time=night(at),
            commit=sha(at),
            url="javascript:alert(1)" if harm and at % 2 else f"https://ci.example/builds/{6000 + at}",
            of_main=(True, True, True, None, False)[at % 5],
            covariates={"duration": 31.0 + at % 3, "completed": 128, "warmups": 0 if at < nights // 3 else 2},
        )
        for at in range(nights)
    )


def series(metric: MetricDocument, nights: int, seed: int, factor: float, at: int) -> SiteSeries:
    """Noise of 2 % around a level, multiplied by ``factor`` from night ``at`` on; every 23rd is missing."""
    noise = np.random.default_rng(seed).normal(0.0, 0.02, nights)
    base = BASES[metric.name]
    made = base * np.exp(noise) * np.where(np.arange(nights) >= at, factor, 1.0)
    values = tuple(None if i % 23 == 22 else float(v) for i, v in enumerate(made))
    ends = (
        [(0, at - 1, base), (at, nights - 1, base * factor)] if 0 < at < nights else [(0, nights - 1, base)]
    )
    levels = tuple(
        SeriesLevel(first=a, last=b, value=v, low=v * 0.993, high=v * 1.007, spread=0.02) for a, b, v in ends
    )
    return SiteSeries(metric=metric, values=values, levels=levels)


def cell(number: int, nights: int, name: str = "", *, moved: float = 1.0, at: int = 0) -> SiteCell:
    family, model = FAMILIES[number % 3]
    load = LOADS[number // 3 % 3]
    factors = {"ttft": moved, "output_throughput": 1 / moved, "spec_decode_acceptance_rate": 1.0}
    return SiteCell(
        name=name or f"{family}_{number:03}/random@{load}-n512",
        family=family,
        model=model,
        load=load,
        machine="2 x H100" if number % 2 else "L40S",
        headline="ttft",
        digest=f"{number:012x}",
        rows=(("model", model), ("dataset", "random, 1000 in, 100 out"), ("warm-ups", "2")),
        points=points(nights),
        series=tuple(series(m, nights, number * 7 + i, factors[m.name], at) for i, m in enumerate(METRICS)),
    )


def alert(where: SiteCell, metric: str, at: int, effect: float, **more: object) -> Alert:
    """A step at point ``at``, with three places."""
    times = [point.time for point in where.points]
    around = range(max(0, at - 1), min(len(times), at + 2))
    given: dict[str, object] = {
        "id": f"{where.name}.{metric}.{at}",
        "cell": where.name,
        "metric": metric,
        "event": "",
        "first": times[at],
        "last": times[-1],
        "effect": effect,
        "interval": (effect - 0.02, effect + 0.02),
        "places": tuple(
            AlertPlace(build=where.points[i].build, time=times[i], p=0.9 if i == at else 0.05) for i in around
        ),
        "builds": tuple(where.points[i].build for i in range(max(0, at - 2), min(len(times), at + 2))),
        "evidence": (Evidence("lasting", {"nights": 12}), Evidence("others spared")),
        "p": 1e-6,
        "nights": len(times) - at,
    }
    return made_alert(**given | more)


def suspects(
    of: Alert, subject: str = "[Log] Wire stat loggers (#2551)", count: int = 12
) -> SuspectsDocument:
    ranked = [
        Suspect(
            sha=sha(900 + i),
            subject=subject if i == 0 else f"[Misc] Something else {i} (#{2400 + i})",
            date=night(20),
            p=round(0.05 / 2 ** (i - 1), 4) if i else 0.85,
            evidence=(
                Factor("place", 3.2, {"nights": ["2026-04-12"], "share": 0.9}),
                Factor("size", 8.0, {"lines": 120, "files": 3}),
            ),
        )
        for i in range(count)
    ]
    return SuspectsDocument(
        alert=of.id,
        ranking=Ranking(tuple(ranked), 0.05, BlastRadius(("async_chunk",), 2, 3)),
        bisect=f"perfbisect bisect {of.cell!r} --good {sha(890)[:12]} --bad {sha(912)[:12]}",
    )


def site(report: BisectResult | None = None, nights: int = 90) -> Site:
    """Nine cells: a slower deploy (two cells, one event), a faster one, a drift, a night, an instrument, one
    over, one acknowledged, one short, one whose every text means harm."""
    step = nights * 2 // 3
    slow, slow_too = cell(0, nights, moved=1.22, at=step), cell(3, nights, moved=1.31, at=step)
    fast, drifting = cell(1, nights, moved=0.85, at=step), cell(2, nights, moved=1.12, at=nights // 2)
    odd, older, quiet = cell(4, nights), cell(5, nights), cell(6, nights)
    marks = (
        SiteMark(at=nights // 3, what="warm-ups 0 -> 2"),
        SiteMark(at=nights // 2, what="longer prompts", cut=False),
    )
    little = SmallChange(at=step, effect=0.02, interval=(0.01, 0.03), why="under 5 %")
    marked = replace(quiet.series[0], small=(little,), discontinuities=marks)
    quiet = replace(quiet, series=(marked, *quiet.series[1:]))
    short = cell(7, 6)
    note = "6 nights: steps under 20 % cannot be seen"
    short = replace(short, series=tuple(replace(x, judged=False, note=note) for x in short.series))
    harmful = cell(8, nights, HARM, moved=1.5, at=step)
    harmful = replace(
        harmful, model=HARM, machine=HARM, points=points(nights, harm=True), rows=((HARM, HARM),)
    )
    alerts = (
        alert(slow, "ttft", step, 0.22, event="deploy"),
        alert(slow, "output_throughput", step, -0.18, event="deploy"),
        alert(slow_too, "ttft", step, 0.31, event="deploy"),
        alert(fast, "ttft", step, -0.15),
        alert(drifting, "ttft", nights // 2, 0.12, shape="drift", interval=(0.03, 0.2), p=0.04),
        alert(odd, "ttft", 20, 0.4, shape="transient", cause="night", last=night(20), p=0.001),
        alert(odd, "output_throughput", 30, 0.08, cause="instrument"),
        alert(older, "ttft", 30, 0.5, recovered=True),
        alert(older, "output_throughput", 40, -0.09, state="acknowledged", why="known since #2918"),
        alert(
            harmful,
            "ttft",
            step,
            0.5,
            id=HARM,
            interval=(0.01, 0.99),
            evidence=(Evidence("same requests changed", {"after": 2.0, "before": 1.0, "cell": HARM}),),
            why=HARM,
            p=None,
        ),
    )
    bisected = () if report is None else (SiteBisection(report=report, alerts=(alerts[0].id,)),)
    return Site(
        title="Nightly performance",
        made=night(nights),
        cells=(slow, slow_too, fast, drifting, odd, older, quiet, short, harmful),
        alerts=alerts,
        suspects=(
            *(suspects(one) for one in alerts[:2]),
            suspects(alerts[-1], HARM).model_copy(
                update={"note": (Evidence("no cell of ours", {"cell": HARM}),), "bisect": HARM}
            ),
        ),
        bisections=bisected,
        commit_url="https://forge.example/commit/{sha}",
        census=(("judged", 24), ("too short", 3)),
        notes=("three nights of April are missing",),
    )


def large(cells: int, nights: int) -> Site:
    """``cells`` cells of three metrics; every fourth moved in all of them, each by a cause of its own."""
    made = [cell(i, nights, moved=1.1 if i % 4 == 0 else 1.0, at=nights - 30) for i in range(cells)]
    alerts = tuple(
        alert(one, x.metric.name, nights - 30, 0.1, event=f"event {i}")
        for i, one in enumerate(made)
        if i % 4 == 0
        for x in one.series
    )
    return Site(
        title="Nightly performance",
        made=night(nights),
        cells=tuple(made),
        alerts=alerts,
        suspects=tuple(suspects(one) for one in alerts),
    )
