"""The contract of a site: what does not fit together is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from perfbisect.dashboard.site import (
    LevelDocument,
    MarkDocument,
    PointDocument,
    SiteCellDocument,
    SiteDocument,
    SmallDocument,
)
from tests.dashboard.site_world import alert, cell, night, site, suspects

CELL = cell(0, 10)


def given(**more: Any) -> dict[str, Any]:
    return {name: getattr(CELL, name) for name in SiteCellDocument.model_fields} | more


def one(**more: Any) -> tuple[Any, ...]:
    return (CELL.series[0].model_copy(update=more), *CELL.series[1:])


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "points out of order": (given(points=CELL.points[::-1]), "in order of time"),
    "no points": (given(points=(), series=one(values=(), levels=())), "has no points"),
    "fewer values": (given(series=one(values=(1.0,))), "1 values for 10 points"),
    "a level beyond": (
        given(series=one(levels=(LevelDocument(first=3, last=10, value=1, low=1, high=1),))),
        "a level lies between",
    ),
    "a change beyond": (
        given(series=one(small=(SmallDocument(at=10, effect=0.1, interval=(0, 1), why=""),))),
        "a change is at one of its points",
    ),
    "a boundary beyond": (
        given(series=one(discontinuities=(MarkDocument(at=-1, what=""),))),
        "a change is at one of its points",
    ),
    "no headline": (given(headline="e2el"), "'e2el' is one of its metrics"),
    "a metric twice": (given(series=(CELL.series[0],) * 2), "each stands once"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_cell_that_does_not_fit_is_refused(what: str) -> None:
    fields, message = BROKEN[what]
    with pytest.raises(ValidationError, match=message):
        SiteCellDocument(**fields)


FOREIGN: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a cell twice": (lambda: {"cells": (CELL, CELL)}, "two of one cell"),
    "an alert twice": (lambda: {"alerts": (alert(CELL, "ttft", 5, 0.1),) * 2}, "two of one alert"),
    "an alert of no series": (lambda: {"alerts": (alert(cell(1, 9), "ttft", 5, 0.1),)}, "is of no series"),
    "an alert of no metric": (lambda: {"alerts": (alert(CELL, "tpot", 5, 0.1),)}, "is of no series"),
    "suspects of no alert": (
        lambda: {"suspects": (suspects(alert(CELL, "ttft", 5, 0.1)),)},
        "no such alerts",
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_site_that_does_not_fit_is_refused(what: str) -> None:
    more, message = FOREIGN[what]
    with pytest.raises(ValidationError, match=message):
        SiteDocument(**({"title": "t", "made": night(1), "cells": (CELL,)} | more()))


@pytest.mark.parametrize("time", ["2026-04-12", "2026-04-12T19:01:15", "2026-04-12T19:01:15+02:00"])
def test_a_moment_says_its_zone_in_one_way(time: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        PointDocument(build="1", time=time)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_is_a_number(value: float) -> None:
    fields = {"metric": CELL.series[0].metric, "values": (value,)}
    with pytest.raises(ValidationError, match="finite"):
        type(CELL.series[0])(**fields)


def test_a_document_is_its_json() -> None:
    made = site()
    assert SiteDocument.model_validate_json(made.text()) == made
    assert '"schema": "perfbisect.site/2"' in made.text()[:60]
