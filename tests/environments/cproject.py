"""A small engine with a C extension and a build backend of its own: no registry is needed to build it."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.gitwriter import HistoryWriter

COMPILER = shutil.which("cc")
WHY_NOT = (
    "no C compiler on PATH"
    if COMPILER is None
    else ""
    if (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    else "Python's headers are not installed"
)
"""Why the tests that compile cannot run here; empty if they can."""

BACKEND = b'''
"""As setuptools does it: packs all that is in build/lib, and makes no library that is newer than its C files.

Objects are made again as a build system does that knows headers; what was compiled is written down.
"""
import base64, hashlib, os, shlex, shutil, subprocess, sysconfig, zipfile
from pathlib import Path

MODULE = r"""
#include <Python.h>
int first(void); int second(void);
static PyObject *speed(PyObject *self, PyObject *args) { return PyLong_FromLong(10 * first() + second()); }
static PyMethodDef methods[] = {{"speed", speed, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
"""

LIB = Path("build/lib.own")

def note(worked):
    with open(os.environ["TINY_COMPILED"], "a") as stream:
        stream.write(" ".join(worked) + "\\n")

def compiled(compiler):
    library = LIB / "tiny_engine" / "_C.so"
    changed = max(path.stat().st_mtime_ns for path in Path("csrc").glob("*.c"))
    if library.exists() and library.stat().st_mtime_ns > changed:
        return note([])
    out = Path("build/objects")
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "module.c").exists():
        (out / "module.c").write_text(MODULE)
    newest = max((path.stat().st_mtime_ns for path in Path("csrc").glob("*.h")), default=0)
    objects, worked = [], []
    for source in (out / "module.c", *sorted(Path("csrc").glob("*.c"))):
        target = out / (source.stem + ".o")
        objects.append(str(target))
        if target.exists() and target.stat().st_mtime_ns > max(source.stat().st_mtime_ns, newest):
            continue
        include = sysconfig.get_paths()["include"]
        subprocess.run([*compiler, "-c", "-fPIC", "-I", include, "-o", str(target), str(source)], check=True)
        worked.append(source.stem)
    note(worked)
    subprocess.run(["cc", "-shared", "-o", str(library), *objects], check=True)

def build_wheel(folder, config_settings=None, metadata_directory=None):
    version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    (LIB / "tiny_engine").mkdir(parents=True, exist_ok=True)
    for path in Path("tiny_engine").glob("*.py"):
        shutil.copy2(path, LIB / path)
    compiled(shlex.split(os.environ.get("CC", "cc")))
    packed = sorted(path for path in LIB.rglob("*") if path.is_file())
    files = {path.relative_to(LIB).as_posix(): path.read_bytes() for path in packed}
    files["tiny_engine/_version.py"] = f"__version__ = {version!r}\\n".encode()
    info = f"tiny_engine-{version}.dist-info"
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: tiny-engine\\nVersion: {version}\\n".encode()
    tag = b"Root-Is-Purelib: false\\nTag: py3-none-any\\n"
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: own\\n" + tag
    rows = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows += f"{path},sha256={digest},{len(data)}\\n"
    name = f"tiny_engine-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
        archive.writestr(f"{info}/RECORD", rows + f"{info}/RECORD,,\\n")
    return name
'''

PROJECT = b"""
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tiny-engine"
dynamic = ["version"]
"""

FIRST: Mapping[str, bytes] = {
    "pyproject.toml": PROJECT,
    "backend.py": BACKEND,
    "csrc/speed.h": b"#define UNIT 1\n",
    "csrc/first.c": b'#include "speed.h"\nint first(void) { return 1 * UNIT; }\n',
    "csrc/second.c": b'#include "speed.h"\nint second(void) { return 2 * UNIT; }\n',
    "tiny_engine/__init__.py": b"from ._version import __version__\nfrom ._C import speed\n",
    "tiny_engine/old.py": b"",
    "docs/a.md": b"1",
    "tests/test_a.py": b"",
}


@dataclass(frozen=True)
class CHistory:
    """Commits by what they change, each on top of the one before; ``v1.2.0`` is the first."""

    path: Path
    first: str
    python: str
    source: str
    header: str
    docs: str
    broken: str
    mended: str


def write_c_history(path: Path) -> CHistory:
    writer = HistoryWriter(path)
    writer.commit("first", FIRST)
    writer.commit("python", {"tiny_engine/new.py": b"NEW = 1\n", "tiny_engine/old.py": None})
    writer.commit("source", {"csrc/second.c": b'#include "speed.h"\nint second(void) { return 3 * UNIT; }\n'})
    writer.commit("header", {"csrc/speed.h": b"#define UNIT 2\n"})
    writer.commit("docs", {"docs/a.md": b"2", "tests/test_a.py": b"x = 1\n"})
    writer.commit("broken", {"csrc/first.c": b"int first(void) { return nothing; }\n"})
    writer.commit("mended", {"csrc/first.c": b"int first(void) { return 4; }\n"})
    return CHistory(path, *writer.finish())
