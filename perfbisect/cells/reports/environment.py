"""Environment variables that a report sets for a server, and those that cannot be read from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfbisect.cells.reports.shell import Computed
from perfbisect.errors import UsageError
from perfbisect.serving.families import OFFLINE
from perfbisect.system import environ

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_COMPUTED = re.compile(r"[$`]")
_TUNING = re.compile(
    r"\b(?P<name>(?:VLLM|TORCH\w*?|PYTORCH|NCCL|RCCL|HCCL|OMP|KMP|MKL|ROCM|AITER|TRITON|FLASHINFER|LMCACHE|TPU|XLA|DIFFUSION)"
    r"_[A-Z0-9_]+)\b(?!\()"
)
_SET_HERE = re.compile(r"['\"]?\]?\s*[=:]\s*\S|['\"]?\s*\n?\s*value\s*:")
"""What follows a name that is set: ``X=1``, ``X: "1"``, ``["X"] = "1"``, ``name: X`` with ``value:``."""
_LISTED = re.compile(r"^[ \t]*(?:-[ \t]+)?(?:environment|env|env_file|envFrom)[ \t]*:", re.MULTILINE)
"""A block of variables in a compose or Kubernetes file."""

_BUILDS = re.compile(
    r"^.*\b(?:pip3? (?:install|wheel)|uv (?:pip|sync|build)|setup\.py|docker build|cmake)\b.*$", re.MULTILINE
)
"""Lines whose variables are those of a build."""

_NOT_WORKLOAD = frozenset(
    {"VLLM_API_KEY", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_LOGGING_LEVEL", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"}
    | {"VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_SERVER_DEV_MODE", "VLLM_USE_MODELSCOPE"}
    | {"VLLM_WORKER_MULTIPROC_METHOD", *OFFLINE}
)
"""Addresses, folders, logging, hubs and how processes start: the same requests, computed the same way."""


_MOST_VARIABLES = 1000
_VALUE_OF = "the value of "


def is_workload(name: str) -> bool:
    """Whether a variable may change how the engine computes; those that every server gets do not count."""
    return name not in _NOT_WORKLOAD and name not in environ.allowed({name: ""})


@dataclass(frozen=True)
class ReportedEnvironment:
    """``values``: variable -> text; ``unread``: what is set without a value that can be read."""

    values: Mapping[str, str]
    unread: tuple[str, ...] = ()

    def __or__(self, later: ReportedEnvironment) -> ReportedEnvironment:
        unread = [name for name in self.unread if name.removeprefix(_VALUE_OF) not in later.values]
        both = ReportedEnvironment(
            {**self.values, **later.values}, tuple(dict.fromkeys([*unread, *later.unread]))
        )
        if len(both.values) + len(both.unread) > _MOST_VARIABLES:
            step = "give the part with the server's command"
            raise UsageError(f"the report sets more than {_MOST_VARIABLES:,} variables", next_step=step)
        return both


NO_VARIABLES = ReportedEnvironment({})


def read_assignments(words: Iterable[str], *, is_tuning: bool = False) -> ReportedEnvironment:
    """Read the words of ``export`` or ``docker run -e``: ``X=1``, or ``X``, whose value is set elsewhere.

    ``is_tuning``: only variables whose name says that they are an engine's, such as ``VLLM_...``.
    """
    values: dict[str, str] = {}
    unread: list[str] = []
    for word in words:
        found = _ASSIGNMENT.fullmatch(word)
        name = found[1] if found else word
        if not is_workload(name) or (is_tuning and not _TUNING.fullmatch(name)):
            continue
        if found and not isinstance(word, Computed) and not _COMPUTED.search(found[2]):
            values[name] = found[2]
        else:
            unread.append(f"{_VALUE_OF}{name}")
    return ReportedEnvironment(values, tuple(unread))


def read_exports(words: Iterable[str], used: Collection[str]) -> ReportedEnvironment:
    """Read the words of ``export``, but variables that the script itself has ``used`` as ``$NAME``.

    One whose name alone says that it is an engine's counts all the same: ``VLLM_...``, ``NCCL_...``.
    """
    found = read_assignments(words)
    kept = [name for name in found.values if name not in used or _TUNING.fullmatch(name)]
    return replace(found, values={name: found.values[name] for name in kept})


def read_prefix(words: Sequence[str]) -> ReportedEnvironment:
    """Read the words before a program: ``X=1``, ``env X=1``, ``docker run -e X=1 --env-file F``."""
    assignments: list[str] = []
    files: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if before in ("-e", "--env"):
            assignments.append(word)
        elif option == "--env" and equals:
            assignments.append(value)
        elif re.fullmatch(r"-e[A-Za-z_]\w*(=.*)?", word):
            assignments.append(word[2:])
        elif before == "--env-file" or (option == "--env-file" and equals):
            files.append(f"--env-file {value or word}")
        elif not before.startswith("-") and _ASSIGNMENT.fullmatch(word):  # not the value of an option
            assignments.append(word)
    found = read_assignments(assignments)
    return ReportedEnvironment(found.values, (*found.unread, *files))


def unread_variables(text: str, read: Collection[str]) -> Iterator[str]:
    """What sets variables of an engine in a text beside those that were ``read``."""
    text = _BUILDS.sub("", text)
    names = (found["name"] for found in _TUNING.finditer(text) if _SET_HERE.match(text, found.end()))
    yield from (name for name in dict.fromkeys(names) if name not in read and is_workload(name))
    if found := _LISTED.search(text):
        yield f"the list below {found[0].strip(' -')}"
