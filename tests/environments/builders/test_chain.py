"""Builders in a row: who builds what, what is handed on, and what is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.common.digests import environment_key
from perfbisect.environments.base import Builder, BuildPrice, Environment, Refusal
from perfbisect.environments.build import DependencyLimits
from perfbisect.environments.builders.cached import BuildContext
from perfbisect.environments.cache import EnvironmentCache
from perfbisect.environments.factory import ChainBuilder, make_builder
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.conftest import World
from tests.environments.cproject import WHY_NOT, CHistory, write_c_history
from tests.environments.wheel_index import serving, wheel_of
from tests.fakes.gitwriter import run_git


@dataclass
class Scripted(Builder):
    """Builds, refuses and fails as it is told; counts what it tried."""

    name: str
    cache: EnvironmentCache
    spec: str
    refused: dict[str, Refusal] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    cost: float | None = 1.0

    def prepare(self, changes: Iterable[Change]) -> None:
        self.prepared += [change.id for change in changes]

    def refuses(self, change: Change) -> Refusal | None:
        return self.refused.get(change.id)

    def key(self, change: Change) -> str:
        return environment_key(self.name, change.id)

    def cached(self, change: Change) -> bool:
        return self.cache.stamp(self.key(change)) is not None

    def ensure(self, change: Change, *, log: Path, timeout: float) -> Environment:
        del log
        self.tried.append(change.id)
        if change.id in self.failing:
            raise self.failing[change.id]
        here = Path(__file__)
        found = Environment("", here, engine_version="1", engine_commit=change.id, engine_file=str(here))
        return self.cache.ensure(
            self.key(change), builder=self.name, spec=self.spec, change=change.id, make=lambda _: {},
            check=lambda _: found, timeout=timeout,
        )  # fmt: skip

    def minutes(self, change: Change) -> float | None:
        return 0.0 if self.cached(change) else self.cost

    def notes(self) -> tuple[str, ...]:
        return (f"{self.name} has a note",)

    def disk(self, changes: Iterable[Change]) -> int | None:
        return None if self.cost is None else 100 * len(list(changes))


A, B, C = (Change(letter * 40) for letter in "abc")
Pair = tuple[Scripted, Scripted, ChainBuilder]


def context_of(cache: EnvironmentCache) -> BuildContext:
    return BuildContext(cache, DependencyLimits(), None)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    cache = EnvironmentCache(tmp_path)
    first, second = Scripted("first", cache, "first:x"), Scripted("second", cache, "second:x")
    return first, second, ChainBuilder([first, second], context_of(cache))


def test_what_the_first_refuses_goes_to_the_second(pair: Pair, log: Path) -> None:
    first, second, chain = pair
    first.refused[B.id] = Refusal("too new")
    chain.prepare([A, B])
    assert (first.prepared, second.prepared) == ([A.id, B.id], [B.id])
    assert (chain.key(A), chain.key(B)) == (first.key(A), second.key(B))
    built = [chain.ensure(change, log=log, timeout=5) for change in (A, B)]
    assert [one.facts["builder"] for one in built] == ["first", "second"]
    assert [one.facts["handed_on"] for one in built] == [[], ["first: too new"]]
    assert (chain.cached(A), chain.cached(B)) == (True, True)
    assert (first.tried, second.tried) == ([A.id], [B.id])


def test_only_when_all_refuse_is_it_refused_and_every_reason_is_told(pair: Pair, log: Path) -> None:
    first, second, chain = pair
    first.refused[A.id] = Refusal("too new")
    assert chain.refuses(A) is None
    second.refused[A.id] = Refusal("no wheel")
    assert chain.refuses(A) == Refusal("first: too new; second: no wheel")
    second.refused[C.id] = first.refused[C.id] = Refusal("no base", error=True)
    assert chain.refuses(C) == Refusal("no base", error=True), "a wrong request is told as one"
    assert chain.key(A) != chain.key(B)
    assert (chain.minutes(A), chain.disk([A])) == (None, 0)
    with pytest.raises(BuildError, match="every builder failed: first: too new; second: no wheel"):
        chain.ensure(A, log=log, timeout=5)


def test_what_fails_to_build_goes_on_and_stays_there_after_a_restart(
    pair: Pair, tmp_path: Path, log: Path
) -> None:
    first, second, chain = pair
    first.failing[A.id] = BuildError("does not compile")
    assert chain.key(A) == first.key(A)
    built = chain.ensure(A, log=log, timeout=5)
    assert built.facts["handed_on"] == ["first: does not compile"]
    assert "does not compile" in log.read_text()
    assert chain.key(A) == built.key == second.key(A)
    again = ChainBuilder([first, second], context_of(EnvironmentCache(tmp_path)))
    assert again.key(A) == second.key(A)
    assert again.ensure(A, log=log, timeout=5).seconds == 0.0
    assert first.tried == [A.id]


def test_when_all_failed_all_are_tried_again(pair: Pair, log: Path) -> None:
    first, second, chain = pair
    first.failing[A.id], second.failing[A.id] = BuildError("one"), BuildError("two")
    with pytest.raises(BuildError, match="every builder failed: first: one; second: two"):
        chain.ensure(A, log=log, timeout=5)
    del first.failing[A.id]
    assert chain.ensure(A, log=log, timeout=5).facts["builder"] == "first"
    assert (first.tried, second.tried) == ([A.id] * 2, [A.id])


def test_a_failure_of_the_machine_is_never_handed_on(pair: Pair, log: Path) -> None:
    first, second, chain = pair
    first.failing[A.id] = MachineError("disk full")
    with pytest.raises(MachineError, match="disk full"):
        chain.ensure(A, log=log, timeout=5)
    assert second.tried == []
    del first.failing[A.id]
    assert chain.ensure(A, log=log, timeout=5).facts["builder"] == "first"


def test_each_change_has_the_price_of_the_builder_that_it_gets(pair: Pair, log: Path) -> None:
    first, second, chain = pair
    first.refused[B.id] = first.refused[C.id] = Refusal("needs compiling")
    first.cost, second.cost = 0.2, 20.0
    assert chain.price([A, B, C]) == BuildPrice(40.2)
    chain.ensure(C, log=log, timeout=5)
    assert chain.price([A, B, C]) == BuildPrice(20.2), "what is cached costs nothing"
    second.cost, second.guess_min = None, 40.0
    told = chain.price([A, B, C])
    assert told == BuildPrice(40.2, {"second": 40.0}), "what was never built is guessed, and it is said"
    assert "guess" in told.notes()[0] and "second 40 min" in told.notes()[0]
    assert BuildPrice(40.2).notes() == ()


def test_costs_and_notes_are_those_of_who_builds(pair: Pair, log: Path) -> None:
    first, second, chain = pair
    first.refused[B.id] = Refusal("x")
    second.cost = 20.0
    chain.prepare([A, B])
    assert [chain.minutes(change) for change in (A, B)] == [1.0, 20.0]
    assert chain.disk([A, B, C]) == 300
    assert chain.notes()[:2] == ("first has a note", "second has a note")
    assert "(1 by first:x, 1 by second:x)" in chain.notes()[2]
    second.cost = None
    assert chain.disk([A, B]) is None
    chain.ensure(B, log=log, timeout=5)
    assert chain.minutes(B) == 0.0


def test_the_first_base_that_fits(world: World) -> None:
    history, copy = world.history, world.cache / "copy"
    shutil.copytree(world.installed.folder / "venv", copy, symlinks=True)
    bases = {world.installed.interpreter: history.base, copy / "bin" / "python": history.kernel}
    spec = ",".join(f"overlay:{base},package=tiny_engine,base={sha}" for base, sha in bases.items())
    builder = world.builder(spec)
    assert isinstance(builder, ChainBuilder)
    changes = [Change(sha) for sha in (history.slow, history.kernel, history.back)]
    builder.prepare(changes)
    first, second = builder.builders
    assert [builder.select(change) for change in changes] == [first, second, first]
    assert builder.notes()[0].startswith(
        f"changes are built in several ways (2 by {first.spec}, 1 by {second.spec})"
    )
    built = world.ensure(builder, changes[0])
    assert built.facts["base"] == str(world.installed.interpreter)
    client = builder.client()
    assert client is not None and client.interpreter == world.installed.interpreter


@pytest.mark.processes
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")
def test_overlay_wheel_source(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each refuses or cannot build comes from the next."""
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    history: CHistory = write_c_history(tmp_path / "repo")
    run_git(history.path, "tag", "v1.2.0", history.first)
    repository = Repository.open(history.path)
    with serving() as index:
        for sha in (history.source, history.mended):
            made = wheel_of(tmp_path / sha, repository, sha, more={"tiny_engine/_C.py": b"speed = None\n"})
            data = made.read_bytes()
            index.add(sha, made, data=data if sha == history.source else data[:-200])
        base = make_builder(
            f"source,package=tiny_engine,env=TINY_COMPILED={tmp_path / 'x'}",
            repository=repository,
            cache=tmp_path,
        ).ensure(Change(history.first), log=log, timeout=60)
        spec = (
            f"overlay:{base.interpreter},package=tiny_engine,base={history.first},"
            f"wheel:{index.address}/{{sha}},package=tiny_engine,variant=default,"
            f"source,package=tiny_engine,env=TINY_COMPILED={tmp_path / 'x'}"
        )
        builder = make_builder(spec, repository=repository, cache=tmp_path / "cache")
        names = ("python", "source", "header", "mended")
        changes = [Change(getattr(history, name)) for name in names]
        builder.prepare(changes)
        assert not builder.cached(changes[0]) and builder.refuses(changes[0]) is None
        assert f"/{history.python}/tiny-engine/" not in index.asked, "not for what the overlay builds"
        built = {
            name: builder.ensure(change, log=log, timeout=60)
            for name, change in zip(names, changes, strict=True)
        }
    assert {name: one.facts["builder"] for name, one in built.items()} == {
        "python": "overlay", "source": "wheel", "header": "source", "mended": "source",
    }  # fmt: skip
    assert [told.partition(":")[0] for told in built["mended"].facts["handed_on"]] == ["overlay", "wheel"]
    assert "cannot install" in built["mended"].facts["handed_on"][1]
