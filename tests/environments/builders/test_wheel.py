"""Wheels of a per-commit index: what is there, what is not, and what is not what it is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.changes.git import Repository
from perfbisect.environments.builders import wheel as wheel_builder
from perfbisect.environments.builders.wheel import WheelBuilder
from perfbisect.environments.builders.wheel_index import page_of
from perfbisect.errors import BuildError, MachineError
from perfbisect.model.change import Change
from tests.environments.conftest import plain_builder
from tests.environments.tiny import TinyHistory, package_files, write_wheel
from tests.environments.wheel_index import Index, serving, wheel_of
from tests.fakes.gitwriter import HistoryWriter


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine, and no second tries by uv."""
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: None)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")


@pytest.fixture
def index() -> Iterator[Index]:
    with serving() as made:
        yield made


@pytest.fixture
def lying(index: Index, history: TinyHistory, repository: Repository, tmp_path: Path) -> Index:
    """Two honest entries, and one of each kind that is not."""
    folder = tmp_path / "served"
    index.add(history.base, wheel_of(folder / "a", repository, history.base, says=history.base[:10]))
    page = index.add(history.slow, wheel_of(folder / "b", repository, history.slow))
    index.failing[page] = [500, 503]
    other = wheel_of(
        folder / "c", repository, history.base, version=f"1.0.dev7+g{history.mended[:9]}", says=history.base
    )
    index.add(history.mended, other)
    index.add(
        history.kernel, write_wheel(folder / "d", "tiny-engine", "1.0", package_files(), ("tiny-helper",))
    )
    whole = wheel_of(folder / "e", repository, history.slow_again)
    index.add(history.slow_again, whole, data=whole.read_bytes()[:-300])
    index.add(history.removed, wheel_of(folder / "f", repository, history.base))
    return index


def wheel(
    cache: Path, index: Index, repository: Repository, more: str = "", day: str | None = None
) -> WheelBuilder:
    spec = f"wheel:{index.address}/{{sha}},package=tiny_engine{more}"
    builder = plain_builder(spec, repository=repository, cache=cache, exclude_newer=day)
    assert isinstance(builder, WheelBuilder)
    builder.index.pause_s = 0.01
    return builder


def commits(history: TinyHistory) -> list[Change]:
    names = ("base", "slow", "kernel", "back", "removed", "mended", "slow_again")
    return [Change(getattr(history, name)) for name in names]


def test_the_holes_are_told_before_anything_is_built(
    lying: Index, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    builder = wheel(tmp_path, lying, repository, ",variant=default")
    builder.prepare(commits(history))
    refused = {change.id: builder.refuses(change) for change in commits(history)}
    holes = {sha for sha, refusal in refused.items() if refusal is not None}
    assert holes == {history.back, history.removed}
    assert "HTTP 404" in str(refused[history.back])
    assert f"the index serves commit {history.base[:9]}" in str(refused[history.removed])
    (note,) = builder.notes()
    assert note.startswith("the index has no wheel for 2 of 7 commits: ")
    assert all(sha[:12] in note for sha in holes)
    assert not (tmp_path / "environments").exists()


def test_each_commit_is_asked_once_and_a_failing_page_again(
    lying: Index, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    builder = wheel(tmp_path, lying, repository, ",variant=default")
    builder.prepare(commits(history))
    for change in commits(history):
        builder.refuses(change)
        builder.key(change)
    pages = [f"/{change.id}/tiny-engine/" for change in commits(history)]
    assert sorted(lying.asked) == sorted([*pages, *[f"/{history.slow}/tiny-engine/"] * 2])


def test_honest_wheels_are_installed_with_dependencies_of_a_day(
    lying: Index, history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    builder = wheel(tmp_path, lying, repository, ",variant=default", day="2001-01-01")
    for sha, shown in ((history.base, "commit"), (history.slow, "commit")):
        built = builder.ensure(Change(sha), log=log, timeout=60)
        assert built.engine_commit == sha
        assert built.engine_version == f"1.0.dev7+g{sha[:9]}"
        assert built.facts["identified_by"] == shown
        assert built.facts["packages"] == [f"tiny-engine==1.0.dev7+g{sha[:9]}", "tiny-helper==5.1"]
        assert built.facts["wheel"].startswith(f"{lying.address}/{sha}/")
        assert built.facts["exclude_newer"] == "2001-01-01"
        assert builder.cached(Change(sha))
        assert builder.minutes(Change(sha)) == 0.0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mended", "says it is commit"),
        ("kernel", r"says no commit \(its version is 1\.0\), and 1 of its files are not those of"),
        ("slow_again", "cannot install tiny_engine @ .*Failed to extract archive"),
    ],
)
def test_a_wheel_that_is_not_what_the_index_calls_it(
    name: str,
    told: str,
    lying: Index,
    history: TinyHistory,
    repository: Repository,
    tmp_path: Path,
    log: Path,
) -> None:
    builder = wheel(tmp_path, lying, repository, ",variant=default")
    change = Change(getattr(history, name))
    assert builder.refuses(change) is None
    with pytest.raises(BuildError, match=told) as raised:
        builder.ensure(change, log=log, timeout=60)
    assert raised.value.where == str(log)
    assert not builder.cached(change)
    assert not list((tmp_path / "environments").glob("[!.]*"))


def test_a_release_with_the_commits_own_files_is_that_commit(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    release = write_wheel(tmp_path / "w", "tiny-engine", "1.0", package_files(), ("tiny-helper",))
    index.add(history.base, release)
    builder = wheel(tmp_path, index, repository, ",variant=default")
    built = builder.ensure(Change(history.base), log=log, timeout=60)
    assert built.facts["identified_by"] == "content"


def test_an_index_that_is_down_is_the_machines_fault(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    index.failing["*"] = [503]
    builder = wheel(tmp_path, index, repository)
    with pytest.raises(MachineError, match="does not answer: HTTP 503"):
        builder.prepare(commits(history))
    index.failing.clear()
    builder.prepare(commits(history))
    assert builder.refuses(Change(history.base)) is not None


def test_an_index_without_variants_is_taken_as_it_is_and_said_so(
    lying: Index, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    builder = wheel(tmp_path, lying, repository)
    builder.prepare(commits(history))
    assert builder.refuses(Change(history.base)) is None
    assert "does not have cpu, which this machine runs, for both ends" in builder.notes()[0]


def test_an_index_that_is_not_there(history: TinyHistory, repository: Repository, tmp_path: Path) -> None:
    builder = wheel(tmp_path, Index(address="http://127.0.0.1:9"), repository)
    with pytest.raises(MachineError, match="does not answer: ConnectionError"):
        builder.refuses(Change(history.base))


def test_one_page_that_does_not_answer_is_no_hole(
    lying: Index, history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    page = f"/{history.base}/tiny-engine/"
    lying.failing[page] = [500] * 100
    builder = wheel(tmp_path, lying, repository, ",variant=default")
    builder.prepare(commits(history))
    assert builder.refuses(Change(history.base)) is None
    assert any("did not answer for 1 of 7 commits" in note for note in builder.notes())
    with pytest.raises(MachineError, match="does not answer: HTTP 500"):
        builder.ensure(Change(history.base), log=log, timeout=60)
    lying.failing.clear()
    assert builder.ensure(Change(history.base), log=log, timeout=60).engine_commit == history.base


def test_commits_that_differ_in_documentation_share_an_environment(
    index: Index, tmp_path: Path, log: Path
) -> None:
    writer = HistoryWriter(tmp_path / "repo")
    writer.commit(
        "engine", {"tiny_engine/__init__.py": b"from ._version import __version__\n", "docs/a": b"1"}
    )
    writer.commit(
        "docs, tests", {"docs/a": b"2", "tests/t.py": b"", ".github/x.yml": b"", "mkdocs.yaml": b""}
    )
    writer.commit("build", {"setup.py": b""})
    shas = writer.finish(checkout=False)
    repository = Repository.open(tmp_path / "repo")
    for sha in shas:
        index.add(sha, wheel_of(tmp_path / sha, repository, sha))
    builder = wheel(tmp_path, index, repository, ",variant=default")
    engine, docs, build = (Change(sha) for sha in shas)
    assert builder.key(engine) == builder.key(docs) != builder.key(build)
    first = builder.ensure(engine, log=log, timeout=60)
    second = builder.ensure(docs, log=log, timeout=60)
    assert (second.folder, second.seconds, second.engine_commit) == (first.folder, 0.0, docs.id)


def test_the_variant_is_the_first_that_both_ends_have(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (13, 0))
    first, middle, last = history.base, history.slow, history.mended
    for sha in (first, middle, last):
        index.add(sha, wheel_of(tmp_path / sha, repository, sha), variant="cu129")
    index.add(first, wheel_of(tmp_path / first, repository, first), variant="cu130")
    changes = [Change(sha) for sha in (first, middle, last)]
    builder = wheel(tmp_path, index, repository)
    builder.prepare(changes)
    assert [builder.refuses(change) for change in changes] == [None, None, None]
    (note,) = builder.notes()
    assert note == (
        "wheels of the variant cu129, which this machine runs "
        "(it also runs cu130, cu128, cu126: variant=NAME)"
    )
    assert builder.key(changes[0]) != wheel(tmp_path, index, repository, ",variant=cu130").key(changes[0])
    index.add(last, wheel_of(tmp_path / last, repository, last), variant="cu130")
    resumed = wheel(tmp_path, index, repository)
    resumed.prepare(changes)
    assert resumed.key(changes[0]) == builder.key(changes[0])


def test_a_silent_page_does_not_choose_the_variant(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(wheel_builder, "driver_cuda", lambda: (13, 0))
    for variant in ("cu130", "cu129"):
        page = index.add(
            history.base, wheel_of(tmp_path / variant, repository, history.base), variant=variant
        )
        index.failing.setdefault(page, [500] * 4 if variant == "cu130" else [])
    builder = wheel(tmp_path, index, repository)
    with pytest.raises(MachineError, match="HTTP 500"):
        builder.refuses(Change(history.base))
    assert builder.refuses(Change(history.base)) is None
    assert builder.notes()[0].startswith("wheels of the variant cu130")


def test_the_variant_may_stand_anywhere_in_the_address(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    spec = f"wheel:{index.address}/x/{{variant}}/{{sha}}/simple/,package=tiny_engine"
    builder = plain_builder(spec, repository=repository, cache=tmp_path)
    assert isinstance(builder, WheelBuilder)
    assert builder.variants == ("cpu",)
    assert page_of(builder.index.template, history.base, "cpu", "tiny-engine") == (
        f"{index.address}/x/cpu/{history.base}/simple/tiny-engine/"
    )


def test_what_it_costs_is_learnt_from_the_index_and_from_builds(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path, log: Path
) -> None:
    made = wheel_of(tmp_path / "w", repository, history.base)
    index.add(history.base, made)
    index.add(history.slow, wheel_of(tmp_path / "v", repository, history.slow))
    builder = wheel(tmp_path, index, repository, ",variant=default")
    base, slow = Change(history.base), Change(history.slow)
    assert builder.minutes(base) is None
    assert builder.disk([base]) == 3 * made.stat().st_size
    built = builder.ensure(base, log=log, timeout=60)
    assert builder.minutes(slow) == pytest.approx(built.seconds / 60)
    assert builder.disk([base]) == 0
    assert builder.disk([base, slow]) == built.facts["bytes"]


def test_the_client_is_one_commits(
    index: Index, history: TinyHistory, repository: Repository, tmp_path: Path
) -> None:
    index.add(history.base, wheel_of(tmp_path / "w", repository, history.base))
    assert wheel(tmp_path, index, repository).client() is None
    client = wheel(tmp_path, index, repository, f",client={history.base}").client()
    assert client is not None
    assert client.engine_commit == history.base
