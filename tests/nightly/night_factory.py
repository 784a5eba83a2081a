"""A night, made for a test."""

from __future__ import annotations

from typing import Any

from perfbisect.model.change import Change
from perfbisect.nightly.model import Night, NightAlert, NightBisection, NightCell, NightStep
from perfbisect.series.alerts import Alert, ReportRow

HOSTILE = "[x](http://evil) <!channel> | @team `a` <script>"
"""Markdown, HTML, Slack's mention of everybody, the end of a table's cell."""


def alert(**changed: Any) -> NightAlert:
    """``change`` and ``counts`` are the night's, all else the alert's own; ``worse`` is of its metric."""
    of_night = {"change": "opened", "counts": True}
    of_night |= {name: changed.pop(name) for name in of_night if name in changed}
    if not changed.pop("worse", True):
        changed["effect"] = -0.21
    given: dict[str, Any] = {
        "id": "20260412-3f1a", "event": "20260412-product", "state": "open", "cell": "text_cpu",
        "metric": "tpot", "shape": "step", "cause": "product", "effect": 0.21, "interval": (0.19, 0.23),
        "first": "2026-04-12T01:20:00Z", "last": "2026-04-13T01:20:00Z", "places": (), "builds": (),
        "nights": 2, "new": True, "recovered": False,
        "evidence": ("it stayed for 2 nights", "e1", "e2", "e3"),
    }  # fmt: skip
    return NightAlert(Alert(**given | changed), **of_night)  # type: ignore[arg-type]


def search(**changed: Any) -> NightBisection:
    given: dict[str, Any] = {
        "event": "20260412-product", "alert": "20260412-3f1a", "cell": "text_cpu", "metric": "tpot",
        "state": "measured", "why": "bisected: found", "good": "a" * 40, "bad": "b" * 40, "commits": 7,
        "job": "20260412-013000-ab12", "outcome": "found",
        "culprit": Change("c0ffee" + "0" * 34, subject=HOSTILE), "probability": 0.97,
        "summary": ("It is slower by 21 %.",), "exit_code": 3,
    }  # fmt: skip
    return NightBisection(**given | changed)


def row(**changed: Any) -> ReportRow:
    given: dict[str, Any] = {
        "alert": "20260412-3f1a", "source": "perfbisect", "model": "acme/tiny", "hardware": "H20 x 1",
        "type": "median or total", "config": "c2", "test": "text_cpu", "metric": "tpot", "unit": "ms",
        "latest": 12.1, "baseline": 10.0, "change": 0.21, "status": "regressed", "days": 2,
        "cause": "product",
    }  # fmt: skip
    return ReportRow(**given | changed)


def make_night(**changed: Any) -> Night:
    given: dict[str, Any] = {
        "name": "vllm-cpu", "id": "20260412-012000", "dry_run": False, "began": "2026-04-12T01:20:00Z",
        "ended": "2026-04-12T03:20:00Z", "commit": Change("d" * 40, subject=HOSTILE),
        "branch": "main", "repository": "/srv/vllm", "environment": "e", "client": "", "machine": "",
        "hardware": "H20 x 1", "engine_version": "0.32.0", "seed": 1, "budget_minutes": 240.0,
        "minutes": 96.4, "order": ("text_cpu",),
        "cells": (
            NightCell(
                name="text_cpu", digest="d", state="measured", launches=2, wanted=2, minutes=8.0,
                metric="tpot", unit="ms", value=12.1, job="20260412-012001-ab12",
            ),
            NightCell(
                name="text_big", digest="e", state="failed", wanted=2, reason=f"no memory {HOSTILE}"
            ),
        ),
        "alerts": (alert(),), "bisections": (search(),), "rows": (row(),),
        "steps": (NightStep(name="publish", state="failed", reported="the disk is full"),),
        "files": {}, "failures": (5,), "notes": (), "next": "perfbisect report 20260412-013000-ab12",
        "folder": "/srv/state",
    }  # fmt: skip
    return Night(**given | changed)


def make_quiet_night() -> Night:
    """One in which nothing was found and nothing failed."""
    measured = tuple(cell for cell in make_night().cells if cell.state == "measured")
    return make_night(cells=measured, alerts=(), bisections=(), rows=(), steps=(), failures=(), next="")
