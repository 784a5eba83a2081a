"""Sentences for the evidence behind a cause and for rejected changes; nothing reads them back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from perfbisect.series.causes import Cause, Evidence, EvidenceKind
from perfbisect.series.findings import SeriesChange, Suppression, SuppressionReason
from perfbisect.series.series import night_of

_KEYS_SHOWN = 3

_SHORT = 20
"""Nights below which a series is called short."""


def evidence_sentence(evidence: Evidence) -> str:
    """One piece of evidence as the report shows it."""
    return _SENTENCES[evidence.kind](evidence)


def alert_evidence(finding: SeriesChange, cause: Cause) -> tuple[str, ...]:
    """The evidence of an alert as the report shows it, that of its cause first."""
    return (*map(evidence_sentence, cause.evidence), *_detection_evidence(finding))


def _detection_evidence(finding: SeriesChange) -> Iterator[str]:
    if finding.joined:
        yield (
            "doubtful by itself among so many series; told since other servers moved on that night: "
            f"{', '.join(finding.joined)}"
        )
    count = len(finding.series.values)
    if count < _SHORT:
        yield f"a short series: {count} nights"
    if finding.series.lacking:
        yield f"{finding.series.lacking} points of the cell do not report {finding.series.metric}"


def _fixed(text: str) -> Callable[[Evidence], str]:
    return lambda _: text


def _label(e: Evidence) -> str:
    return f"{_plain(e.name)}: {e.old} before, {e.new} after"


def _count(e: Evidence) -> str:
    return f"{_plain(e.name)}: {e.before:,.6g} before, {e.after:,.6g} after"


def _redefined(e: Evidence) -> str:
    return f"{_count(e)} and the runs took as long as before: what is counted changed, not the load"


def _explains(e: Evidence) -> str:
    return f"{_count(e)}, which is enough to explain it"


def _falls_short(e: Evidence) -> str:
    return f"{_count(e)}, which does not explain {_times(e.shift)}"


def _keys(e: Evidence) -> str:
    more = f" and {len(e.names) - _KEYS_SHOWN} more" if len(e.names) > _KEYS_SHOWN else ""
    since = "from here on" if e.kind == "keys added" else "no longer"
    return f"the client reports {', '.join(e.names[:_KEYS_SHOWN])}{more} {since}"


def _tail(e: Evidence) -> str:
    moved = f"the {e.name} moved {_times(e.shift)} and the median {_times(e.median_shift)}"
    if e.kind == "slow requests gone":
        gone = "slow requests that were in it before, such as the first of a cold server, are no longer"
        return f"{moved}: {gone}"
    return f"{moved}: a few requests, such as those of a cold server, and not the most"


def _warm_up(e: Evidence) -> str:
    return (
        f"the client took {e.after:.0f} s before the run that it measures, and {e.before:.0f} s until then; "
        f"{e.saved_s:.0f} s of slow requests are gone: as if it sent them first and uncounted"
    )


def _lasting(e: Evidence) -> str:
    return f"it stayed for {e.nights} nights, each on a fresh machine"


def _few_nights(e: Evidence) -> str:
    return f"{e.nights} nights so far: the next tell whether it stays"


def _size(e: Evidence) -> str:
    size = f"{_times(e.shift)}, {e.deviations:.0f} standard deviations of its nights"
    return f"one night long: {size}" if e.kind == "size of one night" else size


def _servers(e: Evidence) -> str:
    moved = f"{e.count} of {e.total} servers moved together"
    if e.controls:
        moved += f"; of the controls (low concurrency, stage times) {e.moved_controls} of {e.controls}"
    if e.kind == "all servers moved":
        return f"{moved}: code that all run, or what it is built on"
    return moved


def _shared_trait(e: Evidence) -> str:
    return (
        f"every server that moved runs {' and '.join(e.names)}, none of the {e.count} others does; "
        f"they moved by {math.expm1(e.shift) * 100:.0f} % at most"
    )


def _same_stream(e: Evidence) -> str:
    return f"{e.name} counts the same stream and did not move with it: chunks are grouped otherwise"


def _seen_before(e: Evidence) -> str:
    return f"the night of {night_of(e.night)} was like that before: nights of two kinds, as machines are"


def _same_requests(e: Evidence) -> str:
    return f"{e.what} in {e.cell}, of the same data set and model: other requests since that night"


def _same_start(e: Evidence) -> str:
    return f"{e.name} of {e.cell}, served by the same start, moved that night too; of it is known:"


_SENTENCES: Mapping[EvidenceKind, Callable[[Evidence], str]] = {
    "label changed": _label,
    "count explains": _explains,
    "count falls short": _falls_short,
    "count redefined": _redefined,
    "keys added": _keys,
    "keys removed": _keys,
    "keys differ": _fixed("the client reports other numbers than before"),
    "definition changed": _fixed("what is measured changed at this point: nothing is scored across it"),
    "slow requests gone": _tail,
    "few requests moved": _tail,
    "warm-up added": _warm_up,
    "warm-up or pause": _fixed("it may be how the server is warmed, or a pause that became dearer"),
    "machine changed": _fixed("the machine changed at this point"),
    "lasting": _lasting,
    "one night": _fixed("one night long"),
    "one night so far": _fixed("one night so far: the next tells a bad night from a change"),
    "one night, then back": _fixed("one night long, then back"),
    "few nights": _few_nights,
    "size of one night": _size,
    "size": _size,
    "within noise": _fixed("no more than a bad night does"),
    "too few cells": _fixed("too few cells moved to tell one slow machine from a change"),
    "servers moved": _servers,
    "all servers moved": _servers,
    "shared trait": _shared_trait,
    "others spared": _fixed("one slow machine would have slowed the others too"),
    "controls spared": _fixed("a slow machine slows them too"),
    "median unchanged": _fixed("the median shows no change that could be told from its nights"),
    "same stream unchanged": _same_stream,
    "level seen before": _seen_before,
    "same requests changed": _same_requests,
    "same start moved": _same_start,
}


def suppression_sentence(rejection: Suppression) -> str:
    """Why a change is no alert."""
    sentences: Mapping[SuppressionReason, str] = {
        "starts the series": "the series begins with it: what was before is not known",
        "too small": f"below the {rejection.least * 100:g} % that are worth telling",
        "too doubtful": "too doubtful among so many series",
        "reported by the median": f"reported by {rejection.metric} of that night",
    }
    return sentences[rejection.kind]


def _times(shift: float) -> str:
    """A log as people say it: a factor where it is large."""
    if abs(shift) <= math.log(1.5):
        return f"{math.expm1(shift) * 100:+.1f} %"
    factor = math.exp(shift)
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.2g} times"


def _plain(name: str) -> str:
    return name.replace("_", " ")
