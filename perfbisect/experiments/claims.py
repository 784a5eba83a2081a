"""Claim files: a statement about a change in a form that can be measured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from perfbisect.model.cell import Words
from perfbisect.model.metric import check_metrics

Settled = Literal["holds", "refuted", "inconclusive"]

_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_BOUND = re.compile(rf"^(?P<sign>>=|<=|>|<)\s*(?P<value>{_NUMBER})\s*%$")
_RANGE = re.compile(rf"^(?P<low>{_NUMBER})\s*%?\s*(?:\.\.|to)\s*(?P<high>{_NUMBER})\s*%$")


@dataclass(frozen=True)
class EffectRange:
    """The effects B / A - 1 that a claim allows, in the metric's own direction."""

    low: float
    high: float

    def settles(self, low: float, high: float) -> Settled:
        """Whether an interval of the effect lies within the claim, apart from it, or across."""
        if math.isnan(low) or math.isnan(high):
            return "inconclusive"
        if self.low <= low and high <= self.high:
            return "holds"
        return "refuted" if high < self.low or low > self.high else "inconclusive"


def combine_claims(claims: Iterable[Settled | None], *, is_refuted: bool) -> Settled:
    """Refuted if one is, or by something else, and holds only if all hold."""
    words = set(claims)
    if is_refuted or "refuted" in words:
        return "refuted"
    return "holds" if words == {"holds"} else "inconclusive"


def parse_change(text: str) -> EffectRange:
    """Parse ``>= 3 %``, ``<= -8%``, ``3 .. 15 %`` or ``-1 to 1 %``, in per cent of A.

    Faster is ``<= -8 %`` of a latency and ``>= 8 %`` of a throughput.

    Raises:
        ValueError: it has none of these forms, or the range is empty.
    """
    words = text.strip()
    if bound := _BOUND.match(words):
        value = float(bound["value"]) / 100
        return EffectRange(value, math.inf) if bound["sign"].startswith(">") else EffectRange(-1.0, value)
    if pair := _RANGE.match(words):
        low, high = float(pair["low"]) / 100, float(pair["high"]) / 100
        if low < high:
            return EffectRange(low, high)
        raise ValueError(f"{words!r} is empty: the smaller number stands first")
    raise ValueError(f"{words!r} is no change; write '>= 3 %', '<= -8 %' or '3 .. 15 %'")


_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class ExpectedEffects(BaseModel):
    """``change``: B / A - 1 of the metric, in its own direction; ``guards``: metrics that must not move."""

    model_config = _STRICT

    metric: str
    change: str
    guards: Words = ()

    _known_metrics = field_validator("metric", "guards")(check_metrics)

    @field_validator("change")
    @classmethod
    def _has_a_form(cls, value: str) -> str:
        parse_change(value)
        return value


class Claim(BaseModel):
    """A claim with its source.

    ``a`` and ``b`` are changes as the command line takes them; ``needs``: what a machine must have, in words,
    where it is more than the cells say.
    """

    model_config = _STRICT

    claim: str = Field(min_length=1)
    source: str = Field(min_length=1)
    cell: str | None = None
    cells: Words = ()
    a: str = Field(min_length=1)
    b: str = Field(min_length=1)
    expect: ExpectedEffects
    needs: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Claim:
        if (self.cell is None) == (not self.cells):
            raise ValueError("say which workload: cell, or cells, and not both")
        if self.a == self.b:
            raise ValueError(f"a and b are the same change, {self.a!r}")
        return self

    def cells_beside(self, file: Path) -> tuple[str, ...]:
        """The cells as they are loaded: a file beside the claim before a name."""
        return tuple(
            str(file.parent / name) if (file.parent / name.partition("@")[0]).is_file() else name
            for name in self.cells or (self.cell or "",)
        )
