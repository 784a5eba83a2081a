"""Tracebacks in the output of an engine, and texts that two launches of one failure have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

_PREFIX = re.compile(r"^((?:\([^()]*\) )*)(?:(?:ERROR|CRITICAL|WARNING|INFO|DEBUG) \S+ \S+ \[[^\]]*\] ?)?")
"""The process and the head of a line of vLLM's log."""
_PLACE = re.compile(r'^\s+File "([^"]+)", line (\d+),?(?: in (\S+))?')
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?::\s|:?$)")
_CONSEQUENCE = re.compile(
    r"EngineDeadError|See (?:the )?(?:root cause|stack trace)|initialization failed|Executor failed"
    r"|CancelledError|KeyboardInterrupt|SystemExit|ExceptionGroup|died unexpectedly"
)
"""Errors that follow from another one."""
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_VARYING: Final = (
    (re.compile(r"\brun (?:warm|\d+)\b"), "a run"),
    (re.compile(r"(?<![\w.])/[\w.+@~%/-]+"), "PATH"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+(?:[.:]\d+)*"), "#"),
)
_LONGEST = 200


def constant_text(text: str) -> str:
    """The first line of a message without what differs between two launches: paths, addresses, numbers."""
    first = text.partition("\n")[0].strip()
    for pattern, word in _VARYING:
        first = pattern.sub(word, first)
    return first[:_LONGEST].rstrip(". ")


@dataclass(frozen=True)
class TraceLine:
    """A frame of a traceback. ``file``: below the folder of installed packages, where it is in one."""

    file: str
    line: int
    function: str = ""

    @property
    def place(self) -> str:
        """The end of the path and the function: equal in every environment, and where lines move."""
        return " ".join(filter(None, ("/".join(self.file.split("/")[-2:]), self.function)))


@dataclass(frozen=True)
class Trace:
    """The error that ended a process, and its frames, the outermost first."""

    error: str
    frames: tuple[TraceLine, ...] = ()

    @cached_property
    def signature(self) -> str:
        """The error and its innermost frame, equal in each launch that fails so."""
        at = f" at {self.frames[-1].place}" if self.frames else ""
        return constant_text(self.error) + at

    @classmethod
    def read(cls, text: str) -> Trace | None:
        """The last error in a log that does not follow from another one; None where there is no traceback.

        Lines of several processes may alternate.
        """
        begun: dict[str, list[TraceLine]] = {}
        found: list[Trace] = []
        for line in text.splitlines():
            head = _PREFIX.match(line)
            process, body = (head[1], line[head.end() :]) if head else ("", line)
            if "Traceback (most recent call last)" in body or body.startswith("Fatal Python error:"):
                begun[process] = []
                if "Traceback" not in body:
                    found.append(cls(body))
            elif process in begun and (place := _PLACE.match(body)):
                file = _INSTALLED.sub("", place[1])
                begun[process].append(TraceLine(file, int(place[2]), place[3] or ""))
            elif process in begun and _ERROR.match(body):
                found.append(cls(body.strip(), tuple(begun.pop(process))))
        causes = [trace for trace in found if not _CONSEQUENCE.search(trace.error)]
        return causes[-1] if causes else None
