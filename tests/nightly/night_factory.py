"""A night, made for a test."""

from __future__ import annotations

from typing import Any

from perfbisect.model.change import Change
from perfbisect.model.commit_details import Evidence
from perfbisect.nightly.model import (
    Night,
    NightBisection,
    NightCell,
    NightStep,
    night_exit_code,
)
from perfbisect.series.alerts import Alert
from perfbisect.series.nightly_report import ReportRow
from tests.series.made_alert import made_alert

HOSTILE = "[x](http://evil) <!channel> | @team `a` <script>"
"""Markdown, HTML, Slack's mention of everybody, the end of a table's cell."""


def change(sha: str) -> Change:
    return Change(sha, subject=HOSTILE)


def alert(**changed: Any) -> Alert:
    given: dict[str, Any] = {
        "cell": "text_cpu", "metric": "tpot", "change": "opened", "counts": True,
        "effect": 0.21 if changed.get("worse", True) else -0.21,
        "evidence": tuple(Evidence("lasting", {"nights": nights}) for nights in (2, 3, 4, 5)),
    }  # fmt: skip
    return made_alert(**given | changed)


def search(**changed: Any) -> NightBisection:
    given: dict[str, Any] = {
        "event": "20260412-product", "alert": "20260412-3f1a", "cell": "text_cpu", "metric": "tpot",
        "state": "measured", "why": "bisected: found", "good": "a" * 40, "bad": "b" * 40, "commits": 7,
        "job": "20260412-013000-ab12", "outcome": "found",
        "culprit": change("c0ffee" + "0" * 34), "probability": 0.97,
        "summary": ("It is slower by 21 %.",), "exit_code": 3,
    }  # fmt: skip
    return NightBisection(**given | changed)


def row(**changed: Any) -> ReportRow:
    given: dict[str, Any] = {
        "alert": "20260412-3f1a", "source": "perfbisect", "model": "acme/tiny", "hardware": "H20 x 1",
        "type": "median or total", "config": "c2", "test": "text_cpu", "metric": "tpot", "unit": "ms",
        "latest": 12.1, "baseline": 10.0, "change": 0.21, "status": "regressed", "days": 2,
        "cause": "product", "picture": "\u2581\u2582\u2581\u2588",
    }  # fmt: skip
    return ReportRow(**given | changed)


def make_night(*, failures: tuple[int, ...] = (5,), **changed: Any) -> Night:
    given: dict[str, Any] = {
        "name": "vllm-cpu", "night": "20260412-012000", "dry_run": False, "began": "2026-04-12T01:20:00Z",
        "ended": "2026-04-12T03:20:00Z", "commit": change("d" * 40),
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
        "files": {}, "notes": (), "next": "perfbisect report 20260412-013000-ab12",
        "folder": "/srv/state",
    }  # fmt: skip
    given |= changed
    return Night(**given, exit_code=night_exit_code(given["alerts"], given["bisections"], failures))


def make_quiet_night() -> Night:
    """One in which nothing was found and nothing failed."""
    measured = tuple(cell for cell in make_night().cells if cell.state == "measured")
    return make_night(cells=measured, alerts=(), bisections=(), rows=(), steps=(), failures=(), next="")
