"""Where the proof runs: an installed vLLM on a GPU, or the pretend engine with a pretend driver."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from perfbisect.machine.devices import DEVICE_FIELDS
from scripts import demo_history
from tests.fakes.history import ENGINE, make_history

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SEED = 7
"""Where the commits are planted."""

_HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}
_SHAPES = {
    "llama_8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128},
    "llama_1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64},
}
"""Models in the shape of cells/models/llama_100m with other sizes; their weights are dummies."""

_SITE = "import site; print(site.getsitepackages()[0])"
_PACKAGE = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
_CLI = "from perfbisect.cli import main; main()"

Say = Callable[[str], None]


class StepFailedError(Exception):
    """Why a step does not hold."""


@dataclass
class World(ABC):
    """An engine on a device: how it is installed, what is planted, and who else may compute there.

    ``work``: folder that is kept between calls; ``commits``: of the planted history.
    """

    work: Path
    commits: int
    tenant_program: ClassVar[str]
    """Prints ``computes``, then keeps the first device busy until its parent ends."""

    @property
    @abstractmethod
    def interpreter(self) -> Path:
        """Has the engine's packages and perfbisect's dependencies."""

    @abstractmethod
    def install(self, say: Say) -> dict[str, Any]:
        """Install what is missing, cells and models; returns facts. Raises StepFailedError."""

    @abstractmethod
    def history(self, folder: Path) -> dict[str, str]:
        """Write the repository; returns ``repo``, ``good``, ``bad``, ``planted``, and ``equal`` to good."""

    @abstractmethod
    def options(self, good: str) -> tuple[str, ...]:
        """perfbisect's options for environment and client."""

    def smoke(self, *, imports_only: bool) -> list[str] | None:
        """The command that checks kernels; None where there are none."""
        del imports_only
        return None

    @property
    def environment(self) -> dict[str, str]:
        """The process environment of perfbisect and of what stands beside it."""
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(self.work / "bin"), os.environ.get("PATH", "")]),
            "PYTHONPATH": str(ROOT),
            "PERFBISECT_STATE": str(self.work / "state"),
            "PERFBISECT_CACHE": str(self.work / "cache"),
            "PERFBISECT_BACKOFF": "5,10,20,40",
        }

    def perfbisect(self, *arguments: str) -> list[str]:
        """A command line of perfbisect, which is not installed but imported from the checkout."""
        return [str(self.interpreter), "-c", _CLI, *arguments]

    def run(self, *command: str | Path, check: bool = True) -> str:
        """What a command prints; with ``check``, StepFailedError if it fails."""
        try:
            done = subprocess.run(
                [str(word) for word in command],
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        except OSError as error:
            raise StepFailedError(f"{command[0]}: {error.strerror}") from None
        if check and done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise StepFailedError(f"{command[0]} ended with {done.returncode}: {said}")
        return done.stdout.strip() if done.returncode == 0 else ""

    def tenant(self) -> subprocess.Popen[str]:
        """Another program that computes on the first device."""
        other = subprocess.Popen(
            [str(self.interpreter), "-c", self.tenant_program],
            env={**self.environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdout is not None
        if other.stdout.readline().strip() != "computes":
            other.kill()
            other.wait()
            raise StepFailedError("the program that should compute beside the launch does not start")
        return other

    def record_driver(self, name: str) -> None:
        """What the driver's command prints now, in the form of the folders in tests/machine/smi."""
        folder = self.work / "driver" / name
        folder.mkdir(parents=True, exist_ok=True)
        fields = list(DEVICE_FIELDS.values())
        # A driver has one of these names, and refuses a query with the other.
        newer, older = DEVICE_FIELDS["reasons"], DEVICE_FIELDS["reasons_before_535"]
        self._record(folder / "gpu.csv", "--query-gpu", [name for name in fields if name != older])
        if not (folder / "gpu.csv").exists():
            self._record(folder / "gpu.csv", "--query-gpu", [name for name in fields if name != newer])
        self._record(folder / "processes.csv", "--query-compute-apps", ["pid", "gpu_uuid", "used_memory"])
        (folder / "list.txt").write_text(self.run("nvidia-smi", "-L", check=False) + "\n")
        (folder / "topo.txt").write_text(self.run("nvidia-smi", "topo", "-m", check=False) + "\n")

    def _record(self, path: Path, query: str, fields: Sequence[str]) -> None:
        """Write a query's rows below the names of its fields; no file where the driver refuses it."""
        query = f"{query}={','.join(fields)}"
        with suppress(StepFailedError):
            printed = self.run("nvidia-smi", query, "--format=csv,noheader,nounits")
            path.write_text(f"{', '.join(fields)}\n{printed}\n".rstrip("\n") + "\n")


@dataclass
class Kit(World):
    """vLLM from a kit over the machine's torch, or as it is installed for ``python``."""

    kit: Path | None = None
    python: Path | None = None
    share: float = field(kw_only=True)

    tenant_program = """
import os, time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
parent, end = os.getppid(), time.monotonic() + 540
print("computes", flush=True)
while os.getppid() == parent and time.monotonic() < end:
    a @ a
    torch.cuda.synchronize()
"""

    @property
    def interpreter(self) -> Path:
        return self.python or self.work / "venv" / "bin" / "python"

    def install(self, say: Say) -> dict[str, Any]:
        (self.work / "bin").mkdir(parents=True, exist_ok=True)
        if self.python is None:
            assert self.kit is not None
            manifest = json.loads((self.kit / "MANIFEST.json").read_text())
            check_digests(self.kit, manifest["files"])
            site = self._make_venv(manifest["python"])
            say("unpacking")
            unpack(self.kit / "site.tar.xz", site)
            self.run(self.interpreter, "-m", "compileall", "-q", "-j", "0", site / "vllm")
            shutil.copy(self.kit / "uv", self.work / "bin" / "uv")
            if shutil.which("git") is None:
                self._install_git()
        self.write_cells()
        return {
            "python": self.run(self.interpreter, "-VV"),
            "vllm": self.run(
                self.interpreter, "-c", "import importlib.metadata as m; print(m.version('vllm'))"
            ),
            "perfbisect": self.run(*self.perfbisect("--version")).splitlines()[0],
            "git": self.run("git", "--version"),
        }

    def write_cells(self) -> None:
        """Cells, claim and models of the proof."""
        for name in ("latency.yaml", "throughput.yaml", "claim.yaml"):
            shutil.copy(HERE / name, self.work / name)
        base = ROOT / "cells" / "models" / "llama_100m"
        for name, shape in _SHAPES.items():
            folder = self.work / "models" / name
            shutil.copytree(base, folder, dirs_exist_ok=True)
            config = json.loads((base / "config.json").read_text()) | _HEADS | shape
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    def _make_venv(self, version: str) -> Path:
        """An environment over the machine's own packages, which come last; returns its site-packages."""
        ours = ".".join(map(str, sys.version_info[:2]))
        if ours != version:
            raise StepFailedError(
                f"the kit is for Python {version}, this is {ours}: gpu_kit.sh --python {ours}"
            )
        folder = self.work / "venv"
        shutil.rmtree(folder, ignore_errors=True)
        self.run(sys.executable, "-m", "venv", "--without-pip", folder)
        site, below = Path(self.run(self.interpreter, "-c", _SITE)), self.run(sys.executable, "-c", _SITE)
        # Unlike --system-site-packages, this works where the machine's Python is a virtual environment.
        (site / "zz_machine.pth").write_text(f"import site; site.addsitedir({below!r})\n")
        return site

    def _install_git(self) -> None:
        """The kit's git, which finds its libraries through a wrapper."""
        assert self.kit is not None
        folder, command = self.work / "git", self.work / "bin" / "git"
        unpack(self.kit / "git.tar.xz", folder)
        command.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={folder} exec {folder}/git "$@"\n')
        command.chmod(0o755)

    def smoke(self, *, imports_only: bool) -> list[str] | None:
        return [str(self.interpreter), str(HERE / "smoke.py"), *(["--import"] if imports_only else [])]

    def history(self, folder: Path) -> dict[str, str]:
        package = Path(self.run(self.interpreter, "-c", _PACKAGE))
        places = demo_history.draw_places(self.commits, SEED)
        os.environ["PATH"] = self.environment["PATH"]  # the kit's git may be the only one
        demo = demo_history.make(
            package.parent, folder, commits=self.commits, places=places, share=self.share
        )
        different = {places.broken, places.docs}
        equal = next(number for number in range(1, places.planted) if number not in different)
        return {name: str(value) for name, value in demo.facts().items()} | {"equal": demo.commits[equal]}

    def options(self, good: str) -> tuple[str, ...]:
        return "--env", f"overlay:{self.interpreter},base={good}"


class Pretend(World):
    """The pretend engine on a device that only its driver's command knows: the proof without a GPU."""

    tenant_program = "import time; print('computes', flush=True); time.sleep(540)"

    @property
    def interpreter(self) -> Path:
        return Path(sys.executable)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **super().environment,
            "CUDA_PRETEND_MACHINE": str(self.work),
            "PERFBISECT_LOCKS": str(self.work / "locks"),
            "PERFBISECT_LIMITS": "foreign_cpu=off,steal=off,available=off,memory_pressure=off",
        }

    def install(self, say: Say) -> dict[str, Any]:
        from tests.machine import fake_smi

        say("a pretend driver")
        (self.work / "bin").mkdir(exist_ok=True)
        cells = ENGINE.parent / "cells"
        shutil.copytree(cells / "models", self.work / "models", dirs_exist_ok=True)
        cell = (cells / "pretend.yaml").read_text().replace("gpus: 0", "gpus: 1")
        (self.work / "latency.yaml").write_text(cell)
        variants = "".join(
            f"  {name}: {{serve_args: {{async-scheduling: {value}}}}}\n"
            for name, value in (("async", "true"), ("sync", "false"))
        )
        throughput = cell.replace("headline: tpot", "headline: output_throughput")
        (self.work / "throughput.yaml").write_text(f"{throughput}variants:\n{variants}")
        shutil.copy(HERE / "claim.yaml", self.work / "claim.yaml")
        return {"nvidia-smi": fake_smi.install(self.work / "bin", fake_smi.MACHINES / "live")}

    def history(self, folder: Path) -> dict[str, str]:
        slow = self.commits // 2
        made = make_history(folder, commits=self.commits, slow=slow, broken=1)
        ends = {"repo": str(folder), "good": made.good, "bad": made.bad}
        return {**ends, "planted": made.commits[slow], "equal": made.commits[2]}

    def options(self, good: str) -> tuple[str, ...]:
        del good
        client = f"existing:{self.interpreter},path={ENGINE}"
        return "--env", f"overlay:{self.interpreter},base=any", "--client", client


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a file of the kit, without leaving the folder."""
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:  # a Python without filters; the digest was checked
            packed.extractall(folder)


def check_digests(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise StepFailedError if a file of the kit is missing or is not the one that was packed."""
    for name, file in files.items():
        try:
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise StepFailedError(f"{folder / name}: {error.strerror}") from None
        if digest != file["sha256"]:
            raise StepFailedError(f"{folder / name} is damaged: its digest is not that of the manifest")
