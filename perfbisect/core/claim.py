"""A claim about a change as a range of effects, and whether an interval settles it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

Settled = Literal["holds", "refuted", "inconclusive"]

_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_ONE = re.compile(rf"^(?P<sign>>=|<=|>|<)\s*(?P<value>{_NUMBER})\s*%$")
_RANGE = re.compile(rf"^(?P<low>{_NUMBER})\s*%?\s*(?:\.\.|to)\s*(?P<high>{_NUMBER})\s*%$")


@dataclass(frozen=True)
class Change:
    """The effects B / A - 1, in the metric's own direction, that a claim allows: ``low`` to ``high``."""

    text: str
    low: float
    high: float

    def settles(self, low: float, high: float) -> Settled:
        """What an interval of the effect says: it lies within the claim, apart from it, or across."""
        if math.isnan(low) or math.isnan(high):
            return "inconclusive"
        if self.low <= low and high <= self.high:
            return "holds"
        return "refuted" if high < self.low or low > self.high else "inconclusive"


def no_worse(share: float, sign: int) -> Change:
    """The effects of a change that is worse by no more than a share; ``sign`` is +1 where larger is worse."""
    if sign > 0:
        return Change(f"<= {100 * share:g} %", -math.inf, share)
    return Change(f">= {-100 * share:g} %", -share, math.inf)


def parse_change(text: str) -> Change:
    """``>= 3 %``, ``<= -8%``, ``3 .. 15 %``, ``-1 to 1 %``: in per cent of A, as the metric itself counts.

    So faster is ``<= -8 %`` of a latency and ``>= 8 %`` of a throughput.

    :raises ValueError: none of these forms, or a range that is empty.
    """
    words = text.strip()
    if one := _ONE.match(words):
        value = float(one["value"]) / 100
        above = one["sign"].startswith(">")
        return Change(words, value if above else -1.0, math.inf if above else value)
    if pair := _RANGE.match(words):
        low, high = float(pair["low"]) / 100, float(pair["high"]) / 100
        if low < high:
            return Change(words, low, high)
        raise ValueError(f"{words!r} is empty: the smaller number stands first")
    raise ValueError(f"{words!r} is no change; write '>= 3 %', '<= -8 %' or '3 .. 15 %'")
