"""A machine that is this one: what its driver has below one folder, it has below another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from perfbisect.fleet.connection import Answer, Connection


@dataclass
class MovedMachine(Connection):
    """The paths of ``here`` are below ``there``.

    ``full``: no file can be written. ``cut_input``, ``cut_output``: a file that is sent or brought ends after
    so many bytes, as where a driver is killed or a connection breaks.
    """

    here: Path
    there: Path
    full: bool = False
    cut_input: int | None = None
    cut_output: int | None = None
    commands: list[str] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        given: bytes | IO[bytes] = b"",
        *,
        into: IO[bytes] | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        words = [self._moved(word) for word in argv]
        self.commands.append(" ".join(words))
        if isinstance(given, bytes):
            given = self._moved(given.decode()).encode()
        elif self.cut_input is not None:
            given = given.read()[: self.cut_input]
        limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *words] if self.full else words
        answer = Connection().run(limited, given, timeout=timeout)
        if into is None:
            return answer
        into.write(answer.output[: self.cut_output])
        return replace(answer, output=b"", code=answer.code if self.cut_output is None else 255)

    def _moved(self, text: str) -> str:
        return text.replace(str(self.here), str(self.there))

    def count(self, part: str) -> int:
        """How many commands have a part."""
        return sum(part in command for command in self.commands)
