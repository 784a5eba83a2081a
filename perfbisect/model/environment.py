"""What a launch ran in, by name, and how two of these differ."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from perfbisect.model.attempt import Attempt, Provenance

EnvironmentRows = tuple[tuple[str, str, str], ...]
"""Name, old, new. The part of a name before a colon is its kind: ``package: triton``, ``flag: --seed``."""

ENVIRONMENT_FACT = "environment"
"""Fact of a launch whose other facts were left out: its :func:`portable_environment`."""

_OWN_FLAGS = ("--host", "--port", "--uds", "--served-model-name")
_OWN_VARIABLES = re.compile(r"TMPDIR|\w*PORT")
"""What each launch has of its own: addresses, and its temporary folder."""

_TORCH = {"cuda": "CUDA", "hip": "HIP", "cudnn": "cuDNN", "nccl": "NCCL"}


def environment_of(provenance: Provenance) -> dict[str, str]:
    """What a launch ran in: engine, packages, driver and torch, client, flags and variables of its server.

    Its own addresses and folders are left out. What was not recorded has no name.
    """
    facts = provenance.facts
    machine, engine, server, torch = (
        _mapping(facts, name) for name in ("machine", "engine", "server", "torch")
    )
    gpus = [gpu for gpu in machine.get("gpus") or () if isinstance(gpu, Mapping)]
    found: dict[str, Any] = {
        "engine": provenance.engine_version,
        "GPU": ", ".join(sorted({str(gpu.get("name", "")) for gpu in gpus})),
        "driver": ", ".join(sorted({str(gpu.get("driver", "")) for gpu in gpus})),
        **{_TORCH[name]: torch.get(name) for name in _TORCH},
        "processors": machine.get("cpu"),
        "kernel": machine.get("kernel"),
        "host": machine.get("host"),
        "Python": engine.get("python"),
        "image": engine.get("image"),
        "client": _mapping(facts, "instrument").get("version"),
        "client's sources": provenance.client_digest,
        **_mapping(facts, ENVIRONMENT_FACT),
        # Of a package's file or address the last part.
        **{
            f"package: {name}": version.rpartition("/")[2]
            for name, version in package_versions(engine.get("packages")).items()
        },
    }
    key, name = str(engine.get("key") or ""), str(facts.get("model_name") or "")

    def shared(value: object) -> str:
        """Without the names of its environment and of its launch."""
        text = str(value).replace(key, "ENVIRONMENT") if key else str(value)
        return re.sub(rf"{re.escape(name)}\w*", "NAME", text) if name else text

    argv = [shared(word) for word in server.get("argv") or ()]
    starts = [place for place, word in enumerate(argv) if word.startswith("--")]
    for start, end in zip(starts, [*starts[1:], len(argv)], strict=False):
        flag, _, value = argv[start].partition("=")
        if flag not in _OWN_FLAGS:
            found[f"flag: {flag}"] = " ".join(filter(None, (value, *argv[start + 1 : end]))) or "set"
    for variable, value in sorted(_mapping(server, "env").items()):
        if not _OWN_VARIABLES.fullmatch(variable):
            found[f"variable: {variable}"] = shared(value) or '""'
    return {name: str(value) for name, value in found.items() if value not in (None, "")}


def portable_environment(provenance: Provenance) -> dict[str, str]:
    """Without paths, command lines and host, for files that are handed on."""
    return {
        name: value
        for name, value in environment_of(provenance).items()
        if not name.startswith(("host", "flag: ", "variable: ")) and "/" not in f"{name}{value}"
    }


def package_versions(packages: Any) -> dict[str, str]:
    """Versions by name of what ``pip freeze`` lists; of one in editable form the name of its folder."""
    named = (str(one).replace(" @ ", "==").partition("==") for one in packages or ())
    return {name.rpartition("/")[2]: version or "editable" for name, _, version in named}


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> EnvironmentRows | None:
    """The rows that differ; None where no name of the one is known of the other.

    A name that one side lacks differs only where that side has others of its kind: what was not recorded is
    no difference.
    """
    if not a.keys() & b.keys():
        return None
    kinds = [{name.partition(": ")[0] for name in side if ": " in name} for side in (a, b)]
    names = (
        name
        for name in dict.fromkeys((*a, *b))
        if (name in a and name in b) or name.partition(": ")[0] in kinds[0] & kinds[1]
    )
    rows = ((name, a.get(name, "-"), b.get(name, "-")) for name in names)
    return tuple(row for row in rows if row[1] != row[2])


def environment_differences(a: Sequence[Attempt], b: Sequence[Attempt]) -> EnvironmentRows | None:
    """How the environments of the last launches of two sides differ; None before both have one."""
    if not a or not b:
        return None
    return differences(*(environment_of(side[-1].provenance) for side in (a, b)))


def _mapping(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}
