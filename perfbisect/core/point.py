"""A reported point: a result that was measured elsewhere, with what is known of how.

Its launch and provenance are partly unknown, so it makes series and is never pooled with attempts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from perfbisect.core.moments import moment

MAIN = ("main", "master")
"""Names of the branch whose builds are nightlies of the product."""

Fate = Literal[
    "broken", "other", "template", "failed", "silent", "repeated", "ambiguous", "twin", "unmeasured", "older"
]
"""Why a result is no point.

``broken``: not whole, or its numbers contradict each other. ``other``: no result of a benchmark.
``template``: the form of zeros that a harness writes where a benchmark left none. ``failed``: requests failed
or were not sent. ``silent``: sound was asked for and none came. ``repeated``: a later result of the same cell
in the same build. ``ambiguous``: two workloads under one name. ``twin``: the same file in another layout.
``unmeasured``: an attempt of ours that failed. ``older``: a summary without cells and requests.
"""


@dataclass(frozen=True)
class Workload:
    """What a result and the name of its file say of the workload; not all of what makes a cell.

    ``lengths``: ``in2500-out900`` where the name says them. ``only_text``: the answers of a chat that can
    speak were text alone. ``digest``: of the cell, where the result was stamped with it. ``rate`` is in
    requests a second, infinite where the load is a concurrency. Without ``prompts`` the test's name is whole.
    """

    test: str
    dataset: str = ""
    concurrency: int | None = None
    rate: float = math.inf
    prompts: int = 0
    lengths: str = ""
    only_text: bool = False
    model: str = ""
    backend: str = ""
    digest: str = ""

    @property
    def cell(self) -> str:
        """The name of the cell: ``qwen3_tts/random@c4-n40``; one name is one workload, as far as is known."""
        stem = f"{self.test}/{self.dataset}" if self.dataset else self.test
        if not self.prompts:
            return stem
        parts = [] if self.concurrency is None else [f"c{self.concurrency}"]
        if self.rate != math.inf:
            parts.append(f"r{self.rate}")
        parts = parts or ["rinf"]
        parts += [f"n{self.prompts}", *filter(None, [self.lengths])]
        return f"{stem}@{'-'.join(parts)}" + ("-text" if self.only_text else "")


@dataclass(frozen=True)
class Build:
    """One night's work of a pipeline, or what stands for it.

    ``pipeline`` says whose numbers ``name`` counts. ``fixed``: when the commit was chosen, ISO 8601 in UTC;
    empty where that is not known, as are ``commit`` and ``branch``.
    """

    source: str
    pipeline: str
    name: str
    commit: str = ""
    branch: str = ""
    fixed: str = ""
    state: str = ""
    url: str = ""
    message: str = ""

    @property
    def key(self) -> str:
        return f"{self.pipeline}#{self.name}"

    @property
    def of_main(self) -> bool | None:
        """True: a build of the main branch; None: not known."""
        return self.branch in MAIN if self.branch else None


@dataclass(frozen=True)
class Point:
    """One cell's result in one build.

    ``began`` and ``ended`` are ISO 8601 in UTC, ``night`` is the day (UTC) on which the build's first result
    began. ``values``: metric -> value, named and in the units of the metric table (``ttft:median``).
    ``covariates``: see ``COVARIATES``. ``start`` names the server start that it shares with other cells.
    ``raw`` is the file, ``record`` its place in it.
    """

    build: Build
    workload: Workload
    began: str
    ended: str
    values: Mapping[str, float]
    covariates: Mapping[str, Any] = field(default_factory=dict)
    night: str = ""
    start: str = ""
    raw: str = ""
    record: int = 0

    @property
    def cell(self) -> str:
        return self.workload.cell

    @property
    def moment(self) -> datetime:
        """When it began."""
        return moment(self.began)


@dataclass(frozen=True)
class Rejection:
    """A result that is no point, and why. ``raw`` is the file, ``record`` its place in it."""

    build: Build
    fate: Fate
    reason: str
    raw: str
    record: int = 0
    cell: str = ""
    night: str = ""


ALONE = "alone"
"""The suite of a cell that shares its server's starts with no other."""

COVARIATES: Mapping[str, str] = {
    "duration": "seconds of the run by the clock",
    "outside": "seconds from when the client was started to its result, without the run itself",
    "completed": "requests that were answered",
    "failed": "requests that were not",
    "prompts": "requests that were asked for",
    "input_tokens": "tokens of a prompt, the mean",
    "output_tokens": "tokens of an answer, the mean",
    "audio_duration": "seconds of sound of an answer, the median",
    "max_concurrent_requests": "most requests at once",
    "warmups": "requests that were sent before and not counted",
    "client": "the load generator: its declared era, else its digest",
    "keys": "digest of the names in the result: another one is another instrument",
    "server": "digest of the serve arguments, where the result has them",
    "suite": "digest of the server whose starts other cells share, ``alone`` where none does",
    "converted": "names that were in another unit, and are converted",
    "baseline": "what the nightly compared with, as the file has it",
    "host": "where it ran",
    "hardware": "the device, as the source calls it",
    "engine": "version of the engine",
    "job": "the job of the build that measured it",
}
"""What may stand beside a point's values, and what it is: what is not known is left out.

None of it is judged; causes are read from it.
"""


def known(covariates: Mapping[str, Any]) -> dict[str, Any]:
    """Covariates without those that say nothing: None, empty text, empty lists and mappings."""
    return {name: value for name, value in covariates.items() if value not in (None, "", [], {})}
