"""An alert, made for a test."""

from __future__ import annotations

from typing import Any

from perfbisect.model.metric import parse_metric
from perfbisect.series.alerts import Alert
from perfbisect.series.points import day_number


def made_alert(**changed: Any) -> Alert:
    """A step of a median by a tenth, of the product, begun on the night of its ``first`` point."""
    given: dict[str, Any] = {
        "id": "20260412-3f1a", "event": "20260412-product", "cell": "a", "metric": "ttft",
        "first": "2026-04-12T01:20:00Z", "last": "2026-04-13T01:20:00Z", "shape": "step",
        "cause": "product", "effect": 0.1, "interval": (0.05, 0.15), "places": (), "builds": (), "nights": 2,
    }  # fmt: skip
    given |= changed
    night = day_number(given["first"][:10])
    made = {
        "night": night,
        "begun": (night - 1, night),
        "worse": given["effect"] * parse_metric(given["metric"]).metric.sign > 0,
    }
    return Alert(**made | given)
