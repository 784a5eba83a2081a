"""A night, made for a test."""

from __future__ import annotations

from typing import Any

from perfbisect.render.detect_documents import ReportRowDocument
from perfbisect.render.documents import ChangeDocument
from perfbisect.render.nightly_documents import (
    NightAlertDocument,
    NightBisectionDocument,
    NightCellDocument,
    NightlyDocument,
    NightStepDocument,
)

HOSTILE = "[x](http://evil) <!channel> | @team `a` <script>"
"""Markdown, HTML, Slack's mention of everybody, the end of a table's cell."""


def alert(**changed: Any) -> NightAlertDocument:
    told: dict[str, Any] = {
        "id": "20260412-3f1a", "event": "20260412-product", "change": "opened", "state": "open",
        "cell": "text_cpu", "metric": "tpot", "shape": "step", "cause": "product", "effect": 0.21,
        "first": "2026-04-12T01:20:00Z", "nights": 2, "worse": True, "recovered": False, "counts": True,
        "evidence": ("it stayed for 2 nights", "e1", "e2", "e3"),
    }  # fmt: skip
    return NightAlertDocument.model_validate(told | changed)


def search(**changed: Any) -> NightBisectionDocument:
    culprit = ChangeDocument(id="c0ffee" + "0" * 34, short="c0ffee000000", subject=HOSTILE, date="")
    told: dict[str, Any] = {
        "event": "20260412-product", "alert": "20260412-3f1a", "cell": "text_cpu", "metric": "tpot",
        "state": "measured", "why": "bisected: found", "good": "a" * 40, "bad": "b" * 40, "commits": 7,
        "job": "20260412-013000-ab12", "outcome": "found", "culprit": culprit, "probability": 0.97,
        "sentences": ("It is slower by 21 %.",), "exit_code": 3,
    }  # fmt: skip
    return NightBisectionDocument.model_validate(told | changed)


def row(**changed: Any) -> ReportRowDocument:
    told: dict[str, Any] = {
        "alert": "20260412-3f1a", "source": "perfbisect", "model": "acme/tiny", "hardware": "H20 x 1",
        "type": "median or total", "config": "c2", "test": "text_cpu", "metric": "tpot", "unit": "ms",
        "latest": 12.1, "baseline": 10.0, "change": 0.21, "status": "regressed", "days": 2,
        "cause": "product",
    }  # fmt: skip
    return ReportRowDocument.model_validate(told | changed)


def night(**changed: Any) -> NightlyDocument:
    told: dict[str, Any] = {
        "name": "vllm-cpu", "night": "20260412-012000", "dry_run": False, "began": "2026-04-12T01:20:00Z",
        "ended": "2026-04-12T03:20:00Z",
        "commit": ChangeDocument(id="d" * 40, short="d" * 12, subject=HOSTILE, date=""),
        "branch": "main", "repository": "/srv/vllm", "environment": "e", "client": "", "machine": "",
        "hardware": "H20 x 1", "engine_version": "0.32.0", "seed": 1, "budget_minutes": 240.0,
        "minutes": 96.4, "order": ("text_cpu",),
        "cells": (
            NightCellDocument(
                name="text_cpu", digest="d", state="measured", launches=2, wanted=2, minutes=8.0,
                metric="tpot", unit="ms", value=12.1, job="20260412-012001-ab12",
            ),
            NightCellDocument(
                name="text_big", digest="e", state="failed", wanted=2, reason=f"no memory {HOSTILE}"
            ),
        ),
        "alerts": (alert(),), "bisections": (search(),), "rows": (row(),),
        "steps": (NightStepDocument(name="publish", state="failed", told="the disk is full"),),
        "files": {}, "told": (), "exit_code": 3, "next": "perfbisect report 20260412-013000-ab12",
        "folder": "/srv/state",
    }  # fmt: skip
    return NightlyDocument.model_validate(told | changed)


def quiet_night() -> NightlyDocument:
    """One in which nothing was found and nothing failed."""
    measured = tuple(cell for cell in night().cells if cell.state == "measured")
    return night(cells=measured, alerts=(), bisections=(), rows=(), steps=(), exit_code=0, next="")
