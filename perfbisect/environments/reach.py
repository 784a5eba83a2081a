"""Whether the places that environments come from can be reached: for a look at the machine before a job."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from perfbisect.core.change import Change
from perfbisect.environments import Builder, uv
from perfbisect.environments.chain import ChainBuilder
from perfbisect.environments.swap import SwapBuilder
from perfbisect.environments.wheel import WheelBuilder
from perfbisect.errors import BuildError, MachineError


@dataclass(frozen=True)
class Reach:
    """A place that is needed: ``what`` it is, whether it answered, what it said, what to do if it did not."""

    what: str
    ok: bool
    told: str
    next_step: str = ""


def check(builder: Builder | None, change: Change | None, *, log: Path) -> tuple[Reach, ...]:
    """The package registry through uv's settings, and each wheel index of a builder, asked for ``change``."""
    found = [registry(log=log)]
    builder = builder.inner if isinstance(builder, SwapBuilder) else builder
    builders = builder.builders if isinstance(builder, ChainBuilder) else (builder,)
    if change is not None:
        found += [_index(each, change) for each in builders if isinstance(each, WheelBuilder)]
    return tuple(found)


def registry(*, log: Path, timeout: float = 120.0) -> Reach:
    """Whether uv finds a package that every registry has, asked anew."""
    try:
        with tempfile.TemporaryDirectory(prefix="perfbisect-") as folder:
            told = uv.find_package("pip", folder=Path(folder), log=log, timeout=timeout)
    except MachineError as error:
        return Reach("package registry", False, error.message, error.next_step or f"see {log}")
    except BuildError as error:
        return Reach("package registry", False, error.message, "check uv's index settings (UV_DEFAULT_INDEX)")
    return Reach("package registry", True, told)


def _index(builder: WheelBuilder, change: Change) -> Reach:
    what = f"wheel index {builder.template}"
    try:
        refusal = builder.refuses(change)
    except MachineError as error:
        return Reach(what, False, error.message, error.next_step or "")
    if refusal is not None:
        return Reach(what, True, f"answers, but for {change.short}: {refusal.reason}")
    return Reach(what, True, f"has a wheel for {change.short}")
