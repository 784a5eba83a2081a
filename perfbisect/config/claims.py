"""Claim files: what somebody said of a change, in a form that can be measured."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from perfbisect.config.validation import validate
from perfbisect.config.yaml_lines import load
from perfbisect.core.claim import Change, parse_change
from perfbisect.core.fields import Words
from perfbisect.core.metric import MetricRef, check_metrics, parse_metric

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class Expected(BaseModel):
    """``change``: B / A - 1 of the metric, in its own direction; ``guards``: metrics that must not move."""

    model_config = _STRICT

    metric: str
    change: str
    guards: Words = ()

    _known_metrics = field_validator("metric", "guards")(check_metrics)

    @field_validator("change")
    @classmethod
    def _form(cls, value: str) -> str:
        parse_change(value)
        return value

    @property
    def ref(self) -> MetricRef:
        """The metric that the claim speaks of."""
        return parse_metric(self.metric)

    @property
    def range(self) -> Change:
        """The effects that the claim allows."""
        return parse_change(self.change)


class Claim(BaseModel):
    """A claim with its source: who said it, and where it can be read.

    ``a`` and ``b`` are changes as the command line takes them (``REV``, ``REV+variant``); ``cells`` are names
    or files of cells. ``needs``: what a machine must have, in words, where it is more than the cells say.
    """

    model_config = _STRICT

    claim: str = Field(min_length=1)
    source: str = Field(min_length=1)
    cell: str | None = None
    cells: Words = ()
    a: str = Field(min_length=1)
    b: str = Field(min_length=1)
    expect: Expected
    needs: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        if (self.cell is None) == (not self.cells):
            raise ValueError("say which workload: cell, or cells, and not both")
        if self.a == self.b:
            raise ValueError(f"a and b are the same change, {self.a!r}")
        return self

    @property
    def workloads(self) -> tuple[str, ...]:
        """The cells, however they were written."""
        return self.cells if self.cell is None else (self.cell,)

    def cells_beside(self, file: Path) -> tuple[str, ...]:
        """The cells as they are loaded: a file beside the claim before a name."""
        return tuple(
            str(file.parent / name) if (file.parent / name.partition("@")[0]).is_file() else name
            for name in self.workloads
        )


def load_claim(path: Path) -> Claim:
    """The claim in a file.

    :raises UsageError: the file cannot be read.
    :raises LocatedError: a key, metric or change that is wrong: file, line, field, what is allowed.
    """
    return validate(load(path), Claim)
