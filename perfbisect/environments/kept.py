"""What builders share that keep environments in a cabinet: what is there, what it costs, how it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable
from pathlib import Path

from perfbisect.core.change import Change
from perfbisect.environments import Environment, Refusal
from perfbisect.environments.base import Built, Cabinet, Stamp, as_environment
from perfbisect.environments.experience import bytes_of, earlier, median_minutes
from perfbisect.errors import BuildError

_PATIENCE = 3600.0


def unread(changes: Iterable[Change], known: Container[str]) -> list[str]:
    """The commits among some changes that are not among those that were looked up."""
    return [change.id for change in changes if change.kind == "commit" and change.id not in known]


class KeptBuilder(ABC):
    """A builder (:class:`perfbisect.environments.Builder`) over a cabinet.

    ``client_commit``: the change whose environment is the client's on all sides; None: there is none.
    """

    name: str
    spec: str
    cabinet: Cabinet
    client_commit: Change | None = None

    @abstractmethod
    def refuses(self, change: Change) -> Refusal | None: ...

    @abstractmethod
    def key(self, change: Change) -> str: ...

    @abstractmethod
    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment: ...

    def cached(self, change: Change) -> bool:
        return self.cabinet.stamp(self.key(change)) is not None

    def client(self) -> Environment | None:
        if self.client_commit is None:
            return None
        log = self.cabinet.log(self.key(self.client_commit))
        return self.ensure(self.client_commit, log=log, timeout=_PATIENCE)

    def minutes(self, change: Change) -> float | None:
        return 0.0 if self.cached(change) else median_minutes(self.stamps())

    def notes(self) -> tuple[str, ...]:
        return ()

    def disk(self, changes: Iterable[Change]) -> int | None:
        return bytes_of(self.stamps(), self.missing(changes))

    def stamps(self) -> tuple[Stamp, ...]:
        """What was built like this before: prices."""
        return earlier(self.cabinet, self.name, self.spec)

    def missing(self, changes: Iterable[Change]) -> dict[str, Change]:
        """By key, one change for each environment that can be built and is not there."""
        buildable = (change for change in changes if self.refuses(change) is None)
        return {self.key(change): change for change in buildable if not self.cached(change)}

    def folder_of(self, change: Change) -> Path:
        """Where the environment of a change is, or will be.

        :raises BuildError: it is refused.
        """
        refusal = self.refuses(change)
        if refusal is not None:
            raise BuildError(f"{change.short}: {refusal.reason}")
        return self.cabinet.folder(self.key(change))

    def kept(
        self,
        change: Change,
        *,
        make: Callable[[Path], None],
        check: Callable[[Path], Built],
        timeout: float,
        in_place: bool = False,
        python_path: str = "",
        before: float = 0.0,
    ) -> Environment:
        """The environment of a change, made and checked if it is not there (:meth:`Cabinet.ensure`).

        Built for another commit of which all that enters the key is the same, it is this one as well.
        ``before``: seconds that what it stands on took.

        :raises BuildError: it is refused, or ``make`` or ``check`` say so.
        :raises MachineError: no disk, no lock, no registry.
        """
        folder, key = self.folder_of(change), self.key(change)
        stamp, seconds = self.cabinet.ensure(
            key,
            builder=self.name,
            spec=self.spec,
            change=change.id,
            make=make,
            check=check,
            timeout=timeout,
            in_place=in_place,
        )
        if change.kind == "commit":
            stamp = stamp.model_copy(update={"engine_commit": change.id})
        return as_environment(stamp, folder, seconds=before + seconds, python_path=python_path)
