"""Rows that several reports show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfbisect.jobs.documents import EffectDocument, ReportDocument


def version_rows(versions: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of everything with which was measured, a table within it row by row."""
    rows = []
    for name, value in versions.items():
        if not value:
            continue
        if isinstance(value, Mapping):
            rows += [(f"{name}: {key}", str(item)) for key, item in value.items() if item]
        else:
            rows.append((name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)))
    return rows


def effect_rows(report: ReportDocument) -> list[tuple[str, EffectDocument]]:
    """Each comparison of a report by its name, the confirming one first."""
    rows = [
        ("culprit against parent", report.confirmed),
        ("bad against good", report.whole),
        ("bad without the culprit against bad", report.revert),
    ]
    named = [(name, effect) for name, effect in rows if effect is not None]
    return named + [(f"step at {step.confirmed.right.short}", step.confirmed) for step in report.steps]
