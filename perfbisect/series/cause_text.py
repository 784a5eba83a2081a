"""Sentences for the evidence behind a cause and for suppressed changes; nothing reads them back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from perfbisect.common.quantities import counted
from perfbisect.series.causes import Cause, Evidence
from perfbisect.series.findings import SeriesChange, SuppressionReason
from perfbisect.series.nights import night_of

_SHORT_SERIES = 20  # nights below which a series is called short

_COUNT = "{name}: {before:,.6g} before, {after:,.6g} after"
_SERVERS = "{count} of {total} servers moved together{controls}"
_SIZE = "{shift}, {deviations:.0f} standard deviations of its nights"
_TAIL = "the {statistic} moved {shift} and the median {median_shift}"

SENTENCES: Mapping[str, str] = {
    "label changed": "{name}: {old} before, {new} after",
    "count explains": f"{_COUNT}, which is enough to explain it",
    "count falls short": f"{_COUNT}, which does not explain {{shift}}",
    "count redefined": f"{_COUNT} and the runs took as long as before: what is counted changed, not the load",
    "keys differ": "the client reports other numbers than before",
    "definition changed": "what is measured changed at this point: nothing is scored across it",
    "slow requests gone": (
        f"{_TAIL}: slow requests that were in it before, such as the first of a cold server, are no longer"
    ),
    "few requests moved": f"{_TAIL}: a few requests, such as those of a cold server, and not the most",
    "warm-up added": (
        "the client took {after:.0f} s before the run that it measures, and {before:.0f} s until then; "
        "{saved_s:.0f} s of slow requests are gone: as if it sent them first and uncounted"
    ),
    "warm-up or pause": "it may be how the server is warmed, or a pause that became dearer",
    "machine changed": "the machine changed at this point",
    "lasting": "it stayed for {nights}, each on a fresh machine",
    "one night": "one night long",
    "one night so far": "one night so far: the next tells a bad night from a change",
    "one night, then back": "one night long, then back",
    "few nights": "{nights} so far: the next tell whether it stays",
    "few nights before": "only {nights} before it: the old level is not sure",
    "size of one night": f"one night long: {_SIZE}",
    "size": _SIZE,
    "within noise": "no more than a bad night does",
    "too few cells": "too few cells moved to tell one slow machine from a change",
    "servers moved": _SERVERS,
    "all servers moved": f"{_SERVERS}: code that all run, or what it is built on",
    "shared trait": (
        "every server that moved runs {traits}, none of the {spared} others does; "
        "they moved by {percent:.0f} % at most"
    ),
    "others spared": "one slow machine would have slowed the others too",
    "controls spared": "a slow machine slows them too",
    "median unchanged": "the median shows no change that could be told from its nights",
    "same stream unchanged": (
        "{metric} counts the same stream and did not move with it: chunks are grouped otherwise"
    ),
    "level seen before": "the night of {night} was like that before: nights of two kinds, as machines are",
    "same requests changed": (
        "{what} in {cell}, of the same data set and model: other requests since that night"
    ),
    "one machine only": (
        "all {count} servers of {machine} moved and none of the {others} on other machines: the machine, or "
        "a change of what these alone run; a bisection tells"
    ),
    "other machines spared": "only {machine} shows it: the same cell did not move on {machines}",
    "other machines moved": "it holds on other machines: {machines}",
    "same start moved": (
        "{metric} of {cell}, served by the same start, moved that night too; of it is known:"
    ),
}


def evidence_sentence(evidence: Evidence) -> str:
    return SENTENCES[evidence.kind].format(**{k: _value(k, v) for k, v in evidence.values.items()})


def alert_evidence(change: SeriesChange, cause: Cause) -> tuple[str, ...]:
    """The evidence of an alert as the report shows it, that of its cause first."""
    sentences = [evidence_sentence(evidence) for evidence in cause.evidence]
    if change.supported_by:
        sentences.append(
            "doubtful by itself among so many series; told since other servers moved on that night: "
            f"{', '.join(change.supported_by)}"
        )
    count = len(change.series.values)
    if count < _SHORT_SERIES:
        sentences.append(f"a short series: {counted(count, 'night')}")
    if change.series.lacking:
        points = counted(change.series.lacking, "point")
        sentences.append(f"without {change.series.metric}: {points} of the cell")
    return tuple(sentences)


def suppression_sentence(change: SeriesChange) -> str:
    """Why a change is no alert."""
    sentences: Mapping[SuppressionReason | None, str] = {
        "starts the series": "the series begins with it: what was before is not known",
        "too small": f"below the {change.series.min_effect * 100:g} % that are worth telling",
        "too doubtful": "too doubtful among so many series",
        "reported by the median": f"reported by {change.duplicate_of} of that night",
    }
    return sentences[change.suppression]


def _value(name: str, value: object) -> object:
    """A value of a piece of evidence as its sentence shows it."""
    match name, value:
        case "name", str():
            return value.replace("_", " ")
        case "shift" | "median_shift", float():
            return _times(value)
        case "nights", int():
            return counted(value, "night")
        case "night", int():
            return night_of(value)
        case "traits", [*traits]:
            return " and ".join(map(str, traits))
        case "machines", [*names]:
            return ", ".join(map(str, names))
        case "controls", (moved, total):
            return f"; of the controls (low concurrency, stage times) {moved} of {total}" if total else ""
    return value


def _times(shift: float) -> str:
    """A log ratio as a percentage, or as a factor where it is large."""
    if abs(shift) <= math.log(1.5):
        return f"{math.expm1(shift) * 100:+.1f} %"
    factor = math.exp(shift)
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.2g} times"
