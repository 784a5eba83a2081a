"""A tiny engine: wheels of it, and a history of it. No registry, no network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter

INIT = b"from ._version import __version__, __commit_id__\nfrom .core import speed\n"
CORE = b"def speed():\n    return 1\n"
COMPILED = b"\x7fELF stands for a compiled file\x00\x01"


def version_file(version: str, commit: str = "") -> bytes:
    return f"__version__ = {version!r}\n__commit_id__ = {commit or None!r}\n".encode()


def package_files(version: str = "1.0", commit: str = "", module: str = "tiny_engine") -> dict[str, bytes]:
    """What a built wheel holds: git's files, and two that git does not have."""
    return {
        f"{module}/__init__.py": INIT,
        f"{module}/core.py": CORE,
        f"{module}/sub/__init__.py": b"",
        f"{module}/sub/gone.py": b"HERE = True\n",
        f"{module}/_version.py": version_file(version, commit),
        f"{module}/_C.abi3.so": COMPILED,
    }


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], requires: tuple[str, ...] = ()
) -> Path:
    """A wheel as the packaging specifications have it."""
    stem = f"{name.replace('-', '_')}-{version}"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    meta = {
        "METADATA": head + "".join(f"Requires-Dist: {one}\n" for one in requires),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content = dict(files) | {f"{stem}.dist-info/{part}": text.encode() for part, text in meta.items()}
    rows = []
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    rows.append(f"{stem}.dist-info/RECORD,,\n")
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            archive.writestr(_entry(path), data)
        archive.writestr(_entry(f"{stem}.dist-info/RECORD"), "".join(rows))
    return wheel


def _entry(path: str) -> zipfile.ZipInfo:
    """An entry without a time: equal content is an equal wheel."""
    entry = zipfile.ZipInfo(path)
    entry.external_attr = 0o600 << 16
    return entry


@dataclass(frozen=True)
class TinyHistory:
    """A history of the tiny engine; each commit by what it does."""

    path: Path
    base: str
    slow: str
    docs: str
    kernel: str
    back: str
    removed: str
    broken: str
    mended: str
    slow_again: str


def write_history(path: Path) -> TinyHistory:
    """Each commit is named by what it does."""
    tracked = {
        name: data for name, data in package_files().items() if not name.endswith(("_version.py", ".so"))
    }
    writer = HistoryWriter(path)
    writer.commit(
        "base", {**tracked, "csrc/ops.cpp": b"int a;", "requirements/common.txt": b"x", "docs/a": b"1"}
    )
    writer.commit("slow", {"tiny_engine/core.py": b"def speed():\n    return 2\n"})
    writer.commit("docs and tests", {"docs/a": b"2", "tests/t.py": b"", "requirements/test.txt": b"pytest"})
    writer.commit(
        "kernel", {"csrc/ops.cpp": b"int b;", "tiny_engine/core.py": b"def speed():\n    return 3\n"}
    )
    writer.commit("back", {"csrc/ops.cpp": b"int a;"})
    writer.commit("removed", {"tiny_engine/sub/gone.py": None, "tiny_engine/sub/new.py": b"NEW = 1\n"})
    writer.commit("broken", {"tiny_engine/core.py": b"import missing_helper\n"})
    writer.commit("mended", {"tiny_engine/core.py": b"def speed():\n    return 4\n"})
    files = {"tiny_engine/core.py": b"def speed():\n    return 2\n", "tiny_engine/sub/new.py": None}
    writer.commit("slow again", {**files, "tiny_engine/sub/gone.py": b"HERE = True\n"})
    return TinyHistory(path, *writer.finish())
