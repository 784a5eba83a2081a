"""Wheels of a per-commit index: found, missing, and other than the index calls them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.base import Builder, Environment
from perfbisect.environments.builders import wheel as wheel_builder
from perfbisect.environments.builders.cached import CachedBuilder
from perfbisect.environments.builders.wheel import CommitWheel, WheelSettings
from perfbisect.environments.builders.wheel_index import page_of
from perfbisect.environments.packages import torch_backend
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.changes.repositories import write_commits
from tests.environments.conftest import plain_builder
from tests.environments.tiny import TinyHistory, package_files, write_wheel
from tests.environments.wheel_index import Index, serving, wheel_of

DEFAULT = ",variant=default"


@dataclass(frozen=True)
class Site:
    """An index of a history's wheels, an empty cache and a log."""

    index: Index
    history: TinyHistory
    repository: Repository
    cache: Path
    log: Path

    def builder(
        self, more: str = DEFAULT, day: str | None = None
    ) -> CachedBuilder[WheelSettings, CommitWheel]:
        spec = f"wheel:{self.index.address}/{{sha}},package=tiny_engine{more}"
        builder = plain_builder(spec, repository=self.repository, cache=self.cache, exclude_newer=day)
        assert isinstance(builder, CachedBuilder)
        builder.settings.index.pause_s = 0.01
        return builder

    def serve(self, sha: str, of: str = "", *, variant: str = "", version: str = "", says: str = "") -> str:
        """Serve a commit's wheel, or another commit's; returns its page."""
        folder = self.cache / "served" / sha / (variant or "default")
        wheel = wheel_of(folder, self.repository, of or sha, version=version, says=says)
        return self.index.add(sha, wheel, variant=variant)

    def ensure(self, builder: Builder, change: Change) -> Environment:
        return builder.ensure(change, log=self.log, timeout=60)

    @property
    def commits(self) -> list[Change]:
        names = ("base", "slow", "kernel", "back", "removed", "mended", "slow_again")
        return [Change(getattr(self.history, name)) for name in names]


@pytest.fixture
def site(
    history: TinyHistory, repository: Repository, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    """An empty index, on a machine without a driver; uv tries once."""
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: None)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with serving() as index:
        yield Site(index, history, repository, tmp_path, log)


@pytest.fixture
def lying(site: Site) -> Site:
    """Two right wheels, and one of each kind that is wrong."""
    history, folder = site.history, site.cache / "served"
    site.serve(history.base, says=history.base[:10])
    site.index.failing[site.serve(history.slow)] = [500, 503]
    site.serve(history.mended, history.base, version=f"1.0.dev7+g{history.mended[:9]}", says=history.base)
    release = write_wheel(folder / "d", "tiny-engine", "1.0", package_files(), ("tiny-helper",))
    site.index.add(history.kernel, release)
    torn = wheel_of(folder / "e", site.repository, history.slow_again)
    site.index.add(history.slow_again, torn, data=torn.read_bytes()[:-300])
    site.serve(history.removed, history.base)
    return site


def test_missing_wheels_are_known_before_anything_is_built(lying: Site) -> None:
    builder, history = lying.builder(), lying.history
    builder.prepare(lying.commits)
    refused = {change.id: builder.refuses(change) for change in lying.commits}
    holes = {sha for sha, refusal in refused.items() if refusal is not None}
    assert holes == {history.back, history.removed}
    assert "HTTP 404" in str(refused[history.back])
    assert f"the index serves commit {history.base[:9]}" in str(refused[history.removed])
    (note,) = builder.notes()
    assert note.startswith("the index has no wheel for 2 of 7 commits: ")
    assert all(sha[:12] in note for sha in holes)
    assert not (lying.cache / "environments").exists()


def test_each_page_is_read_once_and_a_failing_page_again(lying: Site) -> None:
    builder = lying.builder()
    builder.prepare(lying.commits)
    for change in lying.commits:
        builder.refuses(change)
        builder.key(change)
    pages = [f"/{change.id}/tiny-engine/" for change in lying.commits]
    assert sorted(lying.index.asked) == sorted([*pages, *[f"/{lying.history.slow}/tiny-engine/"] * 2])


def test_right_wheels_are_installed_with_dependencies_of_a_day(lying: Site) -> None:
    builder = lying.builder(day="2001-01-01")
    for sha in (lying.history.base, lying.history.slow):
        built = lying.ensure(builder, Change(sha))
        assert (built.engine_commit, built.engine_version) == (sha, f"1.0.dev7+g{sha[:9]}")
        assert built.facts["identified_by"] == "commit"
        assert built.facts["packages"] == [f"tiny-engine==1.0.dev7+g{sha[:9]}", "tiny-helper==5.1"]
        assert built.facts["wheel"].startswith(f"{lying.index.address}/{sha}/")
        assert built.facts["exclude_newer"] == "2001-01-01"
        assert builder.cached(Change(sha))
        assert builder.minutes(Change(sha)) == 0.0
    assert builder.client() is None
    client = lying.builder(f"{DEFAULT},client={lying.history.base}", day="2001-01-01").client()
    assert client is not None and client.engine_commit == lying.history.base


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mended", "says it is commit"),
        ("kernel", r"says no commit \(its version is 1\.0\), and 1 of its files are not those of"),
        ("slow_again", "cannot install tiny-engine @ .*Failed to extract archive"),
    ],
)
def test_wrong_wheels(name: str, said: str, lying: Site) -> None:
    builder, change = lying.builder(), Change(getattr(lying.history, name))
    assert builder.refuses(change) is None
    with pytest.raises(BuildError, match=said) as raised:
        lying.ensure(builder, change)
    assert raised.value.where == str(lying.log)
    assert not builder.cached(change)
    assert not list((lying.cache / "environments").glob("[!.]*"))


def test_an_index_that_is_down_is_the_machines_fault(site: Site) -> None:
    site.index.failing["*"] = [503]
    builder = site.builder("")
    with pytest.raises(MachineError, match="does not answer: HTTP 503"):
        builder.prepare(site.commits)
    site.index.failing.clear()
    builder.prepare(site.commits)
    assert builder.refuses(Change(site.history.base)) is not None
    gone = replace(site, index=Index(address="http://127.0.0.1:9")).builder("")
    with pytest.raises(MachineError, match="does not answer: ConnectionError"):
        gone.refuses(Change(site.history.base))


def test_a_wheel_for_rocm_comes_with_what_it_is_pinned_to(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.cache / "rocm" / ".info").mkdir(parents=True)
    (site.cache / "rocm" / ".info" / "version").write_text("7.2.3-81\n")
    command = site.cache / "rocm" / "libexec" / "rocm-smi"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    sha, served = site.history.base, site.cache / "served"
    pinned = ("tiny-torch==2.11.0+git1c57644",)
    site.index.add(sha, wheel_of(served, site.repository, sha, requires=pinned), variant="rocm723")
    torch = write_wheel(served, "tiny-torch", "2.11.0+git1c57644", {"tiny_torch.py": b""})
    site.index.add_root(sha, "rocm723", torch)
    builder = site.builder("", day="2025-01-01")
    assert builder.settings.index.variants == ("rocm723",), "never the wheel at the commit's own address"
    built = site.ensure(builder, Change(sha))
    assert built.facts["variant"] == "rocm723"
    assert "tiny-torch==2.11.0+git1c57644" in built.facts["packages"]
    other = site.history.mended
    site.index.add(other, wheel_of(served, site.repository, other, requires=pinned), variant="rocm723")
    site.index.add_root(other, "rocm723", torch)
    del site.index.files[f"/{other}/rocm723/tiny-torch/"]
    with pytest.raises(BuildError, match=r"no wheel: HTTP 404 at .*/rocm723/tiny-torch/"):
        site.ensure(builder, Change(other))
    monkeypatch.setenv("ROCM_PATH", str(site.cache))
    assert site.builder("").settings.index.variants == ("cpu", "")


def test_uv_is_given_the_builds_of_torch_that_it_knows() -> None:
    variants = ("cu130", "cpu", "rocm7.2", "rocm723", "", "default")
    assert [torch_backend(name) for name in variants] == ["cu130", "cpu", "rocm7.2", "", "", ""]


def test_an_index_without_variants(lying: Site) -> None:
    builder = lying.builder("")
    builder.prepare(lying.commits)
    assert builder.refuses(Change(lying.history.base)) is None
    assert "does not have cpu, which fits the machine, for both ends" in builder.notes()[0]


def test_one_page_that_does_not_answer_is_no_hole(lying: Site) -> None:
    builder, base = lying.builder(), Change(lying.history.base)
    lying.index.failing[f"/{base.id}/tiny-engine/"] = [500] * 100
    builder.prepare(lying.commits)
    assert builder.refuses(base) is None
    assert any("did not answer for 1 of 7 commits" in note for note in builder.notes())
    with pytest.raises(MachineError, match="does not answer: HTTP 500"):
        lying.ensure(builder, base)
    lying.index.failing.clear()
    assert lying.ensure(builder, base).engine_commit == base.id


def test_commits_that_differ_in_documentation_share_an_environment(site: Site) -> None:
    repository, shas = write_commits(
        site.cache / "repo",
        {"tiny_engine/__init__.py": b"from ._version import __version__\n", "docs/a": b"1"},
        {"docs/a": b"2", "tests/t.py": b"", ".github/x.yml": b"", "mkdocs.yaml": b""},
        {"setup.py": b""},
    )
    site = replace(site, repository=repository)
    for sha in shas:
        site.serve(sha)
    engine, docs, build = (site.builder().key(Change(sha)) for sha in shas)
    assert engine == docs != build


def test_the_variant_is_the_first_that_both_ends_have(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (13, 0))
    shas = (site.history.base, site.history.slow, site.history.mended)
    for sha in shas:
        site.serve(sha, variant="cu129")
    site.serve(shas[0], variant="cu130")
    changes = [Change(sha) for sha in shas]
    builder = site.builder("")
    builder.prepare(changes)
    assert [builder.refuses(change) for change in changes] == [None, None, None]
    (note,) = builder.notes()
    assert note == (
        "wheels of the variant cu129, which this machine runs "
        "(it also runs cu130, cu128, cu126: variant=NAME)"
    )
    assert builder.key(changes[0]) != site.builder(",variant=cu130").key(changes[0])
    site.serve(shas[-1], variant="cu130")
    resumed = site.builder("")
    resumed.prepare(changes)
    assert resumed.key(changes[0]) == builder.key(changes[0])


def test_a_silent_page_does_not_choose_the_variant(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (13, 0))
    base = Change(site.history.base)
    site.serve(base.id, variant="cu129")
    site.index.failing[site.serve(base.id, variant="cu130")] = [500] * 4
    builder = site.builder("")
    with pytest.raises(MachineError, match="HTTP 500"):
        builder.refuses(base)
    assert builder.refuses(base) is None
    assert builder.notes()[0].startswith("wheels of the variant cu130")


def test_the_variant_may_stand_anywhere_in_the_address(site: Site) -> None:
    address = f"{site.index.address}/x/{{variant}}/{{sha}}/simple/"
    builder = plain_builder(f"wheel:{address}", repository=site.repository, cache=site.cache)
    assert isinstance(builder, CachedBuilder)
    assert builder.settings.index.variants == ("cpu",)
    page = page_of(builder.settings.index.template, "a1", "cpu", "tiny-engine")
    assert page == f"{site.index.address}/x/cpu/a1/simple/tiny-engine/"


def test_costs_are_estimated_from_the_index_and_from_builds(site: Site) -> None:
    base, slow = Change(site.history.base), Change(site.history.slow)
    for change in (base, slow):
        site.serve(change.id)
    (wheel,) = (site.cache / "served" / base.id).rglob("*.whl")
    builder = site.builder()
    assert builder.minutes(base) is None
    assert builder.disk([base]) == 3 * wheel.stat().st_size
    built = site.ensure(builder, base)
    assert builder.minutes(slow) == pytest.approx(built.seconds / 60)
    assert builder.disk([base]) == 0
    assert builder.disk([base, slow]) == built.facts["bytes"]
