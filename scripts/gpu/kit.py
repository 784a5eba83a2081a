"""Make a kit for a GPU machine without a network: what it lacks to run vLLM and perfbisect, as files to copy.

    python -m scripts.gpu.kit FOLDER [--python 3.12]

The machine has torch for CUDA 13 and the usual packages around it, among them transformers; the kit holds
vLLM's wheel, with code for one GPU architecture only, and the packages of ``requirements.txt``. All come from
pip's index by ``pip download``. Ends with 1 if the kit is larger than one copy may be.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.gpu.fatbin import prune

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

VLLM = "0.26.0"
"""Its wheel is built against torch 2.11.0 for CUDA 13, for every Python from 3.10 on."""
ARCHITECTURE = 90
LARGEST = 64 * 2**20
"""Bytes of one copy."""
MANIFEST = "MANIFEST.json"

SITE, PROJECT, GIT, UV = "site.tar.xz", "project.tar.xz", "git.tar.xz", "uv"

GLIBC = (35, 34, 31, 28, 27, 26, 24, 17)
"""Minor versions of glibc 2 that wheels are built for: pip takes each name as it is."""

LEFT_OUT = (
    "bin",
    "share",
    "vllm/third_party/deep_gemm",
    "vllm/third_party/fmha_sm100",
    "vllm/vllm-rs",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/_flashmla_C.abi3.so",
    "vllm/_flashmla_extension_C.abi3.so",
    "vllm/_qutlass_C.abi3.so",
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
)
"""What a dense model on one such GPU never loads: mixture of experts, MLA, other devices' kernels."""

NEEDED = "vllm/_C_stable_libtorch.abi3.so"

_LIBRARY = re.compile(r"=> (/\S+/(lib(?:pcre2|z)\S*)) \(")
"""Libraries that git needs beside the C library, in what ``ldd`` prints."""


def pip() -> tuple[str, ...]:
    """The command of pip: of this interpreter, else the one on PATH."""
    if importlib.util.find_spec("pip") is not None:
        return sys.executable, "-m", "pip"
    found = shutil.which("pip")
    if found is None:
        raise SystemExit("there is no pip, neither for this interpreter nor on the PATH")
    return (found,)


def say(text: str) -> None:
    """A line of progress."""
    print(f"gpu_kit: {text}", file=sys.stderr, flush=True)


def install(wheels: Path, site: Path, python: str) -> None:
    """Download vLLM and the requirements for the machine's Python, and unpack them into ``site``."""
    target = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for minor in GLIBC:
        target += ["--platform", f"manylinux_2_{minor}_x86_64"]
    target += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
    wanted = [f"vllm=={VLLM}", "--requirement", str(HERE / "requirements.txt")]
    say(f"downloading vllm {VLLM} and its dependencies for Python {python}")
    subprocess.run([*pip(), "download", "--quiet", *target, "--dest", str(wheels), *wanted], check=True)
    local = ["--no-index", "--find-links", str(wheels), "--no-compile", "--target", str(site)]
    subprocess.run([*pip(), "install", "--quiet", *target, *local, *wanted], check=True)
    if not (site / NEEDED).is_file():
        raise SystemExit(f"the wheel of vllm {VLLM} holds no {NEEDED}: it is not the one for CUDA 13")


def prune_site(site: Path) -> dict[str, dict[str, object]]:
    """Drop what is never loaded, and device code of other architectures; what was kept by file."""
    for name in LEFT_OUT:
        path = site / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    facts: dict[str, dict[str, object]] = {}
    for library in sorted((site / "vllm").rglob("*.so")):
        data = bytearray(library.read_bytes())
        pruning = prune(data, ARCHITECTURE)
        if pruning.kept or pruning.zeroed:
            library.write_bytes(data)
            facts[library.relative_to(site).as_posix()] = {
                "kept": dict(sorted(pruning.kept.items())),
                "zeroed": dict(sorted(pruning.zeroed.items())),
                "containers_without_cubin": pruning.without,
            }
    return facts


def pack(archive: Path, files: Iterable[tuple[Path, str]]) -> None:
    """Pack files and folders under the names given, without owners, dates and byte code."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return None if entry.name.endswith((".pyc", "__pycache__")) else entry

    with tarfile.open(archive, "w:xz", preset=3) as packed:
        for path, name in files:
            packed.add(path, name, filter=plain)


def git_files() -> list[tuple[Path, str]]:
    """The git command with the libraries it needs, for a machine that has none."""
    git = shutil.which("git")
    if git is None:
        raise SystemExit("there is no git to take along")
    printed = subprocess.run(["ldd", git], capture_output=True, text=True, check=True).stdout
    libraries = [(Path(path).resolve(), name) for path, name in _LIBRARY.findall(printed)]
    return [(Path(git).resolve(), "git"), *libraries]


def pack_project(archive: Path) -> str:
    """Pack the files of HEAD; returns its commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    plain = archive.with_suffix("")
    subprocess.run(["git", "archive", "--output", str(plain), commit], cwd=ROOT, check=True)
    subprocess.run(["xz", "-6", "--force", str(plain)], check=True)
    return commit


def digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            sha.update(part)
    return sha.hexdigest()


def write_manifest(folder: Path, names: Iterable[str], **facts: object) -> int:
    """Write the manifest, print it, and return the size of the kit in bytes."""
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)} for name in names
    }
    total = sum(int(file["bytes"]) for file in files.values())
    document = {**facts, "files": files, "bytes": total, "largest": LARGEST}
    text = json.dumps(document, indent=1) + "\n"
    (folder / MANIFEST).write_text(text)
    print(text, end="")
    return total


def make(folder: Path, python: str) -> int:
    """Make the kit; returns its size in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        site = Path(temporary) / "site"
        install(Path(temporary) / "wheels", site, python)
        pruned = prune_site(site)
        packages = sorted(path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info"))
        say("packing")
        pack(folder / SITE, [(path, path.name) for path in sorted(site.iterdir())])
    pack(folder / GIT, git_files())
    commit = pack_project(folder / PROJECT)
    shutil.copy(HERE / UV, folder / UV)
    return write_manifest(
        folder,
        (SITE, PROJECT, GIT, UV),
        vllm=VLLM,
        python=python,
        architecture=f"sm_{ARCHITECTURE}",
        perfbisect=commit,
        packages=packages,
        device_code=pruned,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Make the kit and check its size."""
    parser = argparse.ArgumentParser(prog="gpu_kit.sh", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python")
    options = parser.parse_args(argv)
    total = make(options.folder.absolute(), options.python)
    say(f"{total / 2**20:.1f} MiB in {options.folder}")
    if total > LARGEST:
        say(f"that is more than one copy may be ({LARGEST / 2**20:.0f} MiB)")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
