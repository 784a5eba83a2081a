"""Whether an alert is worth a bisection by itself, and how else its commit is named: rules, no judgement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfbisect.core.alert import Alert


@dataclass(frozen=True)
class Rules:
    """``wanted``: bisect at all. ``least``: smallest relative effect that is worth it. ``tails``: also a mean
    or a percentile by itself."""

    wanted: bool = True
    least: float = 0.0
    tails: bool = False


def not_worth(alert: Alert, rules: Rules, *, is_over: bool = False) -> str:
    """Why an alert is not worth a bisection, in words; empty where nothing speaks against it.

    ``is_over``: it was a transient, and has ended.
    """
    effect = abs(alert.effect)
    against = (
        (not rules.wanted, "the configuration says bisect: {when: never}"),
        (alert.state == "acknowledged", "somebody knows of it"),
        (alert.state == "closed", "it is closed"),
        (alert.recovered, "the series is back where it was"),
        (is_over, "it passed"),
        (alert.cause == "instrument", "the instrument changed, not the product"),
        (alert.cause == "workload", "the workload changed, not the product"),
        (alert.cause == "night", "the night was bad, not the product"),
        (not alert.worse, "it became better"),
        (alert.part != "typical" and not rules.tails, "the median did not move"),
        (effect < rules.least, f"{effect:.1%} is less than the {rules.least:.1%} from which it is worth it"),
    )
    return next((why for holds, why in against if holds), "")


def named(commits: int, attributed: str) -> tuple[Literal["named", "attributed", ""], str]:
    """How the commit is known without a measurement, and why; empty where it must be measured.

    ``commits``: how many lie in the window; ``attributed``: the revert after which the series recovered.
    """
    if attributed:
        return "attributed", attributed
    if commits == 1:
        return "named", "the window holds one commit"
    return "", ""


def no_time(left: float, least: float) -> str:
    """Why a bisection does not begin tonight; empty where it does. ``least``: minutes that it takes."""
    if left < least:
        return f"{left:.0f} minutes are left, and it takes {least:.0f} at least"
    return ""
