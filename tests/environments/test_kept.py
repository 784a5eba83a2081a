"""What is kept of registries: whole or not at all, within a size, by several processes at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from perfbisect.environments.base import Artifact
from perfbisect.environments.build import BuildRun
from perfbisect.environments.kept import (
    KeepReason,
    KeptArtifact,
    KeptArtifacts,
    KeptFile,
    surplus,
    total_bytes,
)
from perfbisect.errors import MachineError, UsageError

DAY = 86400.0


def artifact(name: str, content: bytes = b"", *, digest: str = "", more: bytes = b"") -> Artifact:
    """An artifact of 1000 bytes and a file that others share."""
    files = {f"{name}.whl": (content or name.encode()).ljust(1000), **({"torch.whl": more} if more else {})}

    def save(_build: BuildRun, folder: Path) -> Mapping[str, str]:
        for file, data in files.items():
            (folder / file).write_bytes(data)
        return {file: f"http://index/{file}" for file in files}

    return Artifact(f"http://index/{name}/", save, digest)


def wanted(
    name: str, day: float = 0.0, why: KeepReason = "changed night", nightly: str = "n"
) -> KeptArtifact:
    return KeptArtifact(name, "wheel:x", day * DAY, why, "" if why == "asked for" else nightly)


class Keeper:
    """Keeps artifacts by their names."""

    def __init__(self, folder: Path) -> None:
        self.store, self.build = KeptArtifacts(folder), BuildRun(folder / "log", 5.0)

    def keep(
        self, name: str, day: float = 0.0, why: KeepReason = "changed night", size: float | None = None
    ) -> list[str]:
        """What was dropped for it."""
        return [
            one.change for one in self.store.keep(artifact(name), wanted(name, day, why), self.build, size)[1]
        ]

    @property
    def names(self) -> list[str]:
        return [one.change for one in self.store.all()]

    def blob(self, name: str) -> Path:
        (path,) = self.store.root.glob(f"files/*/{name}.whl")
        return path


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path)


def test_what_is_kept_is_found_by_what_was_asked_for(keeper: Keeper, tmp_path: Path) -> None:
    keeper.keep("a", 3)
    (kept,) = keeper.store.all()
    assert keeper.store.find("http://index/a/") == kept and keeper.store.find("http://index/b/") is None
    assert (kept.change, kept.spec, kept.kept_at, kept.why) == ("a", "wheel:x", 3 * DAY, "changed night")
    (link,) = keeper.store.link(kept, tmp_path / "links")
    assert link.read_bytes() == b"a".ljust(1000)
    assert kept.digest == f"sha256:{kept.files[0].digest}" and kept.files[0].origin == "http://index/a.whl"
    keeper.store.drop([kept])
    assert link.exists() and not keeper.names
    assert not list(keeper.store.root.glob("files/*"))


def test_a_truncated_file_is_not_kept_any_more(keeper: Keeper) -> None:
    keeper.keep("a")
    keeper.blob("a").write_bytes(b"a" * 999)
    assert keeper.store.find("http://index/a/") is None and not keeper.names
    keeper.keep("a")
    assert keeper.blob("a").stat().st_size == 1000 and keeper.names == ["a"]


def test_a_changed_file_is_never_used(keeper: Keeper, tmp_path: Path) -> None:
    keeper.keep("a")
    (kept,) = keeper.store.all()
    keeper.blob("a").write_bytes(b"b" * 1000)
    assert keeper.store.link(kept, tmp_path / "links") == ()
    assert not list((tmp_path / "links").iterdir()) and not keeper.names


@pytest.mark.parametrize("text", ["", "{}", '{"change": "../../a"}'])
def test_a_damaged_record_is_left_out_and_swept(keeper: Keeper, text: str) -> None:
    keeper.keep("a")
    keeper.keep("b")
    record = next(path for path in keeper.store.root.glob("records/*") if '"a"' in path.read_text())
    record.write_text(text)
    assert keeper.names == ["b"]
    keeper.store.collect(None, dry_run=False)
    assert len(list(keeper.store.root.glob("files/*"))) == 1 and not record.exists()


def test_a_file_name_that_leads_elsewhere_is_refused(keeper: Keeper) -> None:
    keeper.keep("a")
    record = next(keeper.store.root.glob("records/*"))
    record.write_text(record.read_text().replace("a.whl", "../../a.whl"))
    assert not keeper.names


def test_a_failed_download_leaves_nothing(keeper: Keeper) -> None:
    def save(_build: BuildRun, folder: Path) -> Mapping[str, str]:
        (folder / "half.whl").write_bytes(b"x")
        raise MachineError("the index does not answer")

    with pytest.raises(MachineError, match="does not answer"):
        keeper.store.keep(Artifact("http://index/a/", save), wanted("a"), keeper.build, None)
    assert not keeper.names and not list(keeper.store.root.glob(".staging/*"))


def test_sixty_nights_are_thinned_out_evenly() -> None:
    nights = [replace(wanted(f"{day:02}", day), source=str(day), files=file(day)) for day in range(60)]
    nights[40] = replace(nights[40], why="last good night")
    gone = surplus(nights, 30_000)
    left = [int(one.change) for one in nights if one not in gone]
    assert len(left) == 30 and {0, 40, 59} <= set(left)
    assert {after - before for before, after in pairwise(left)} <= {1, 2, 3}
    few = [one.change for one in nights if one not in surplus(nights, 2000)]
    assert few == ["40", "59"], "the last good night is the last to go"
    assert [one.change for one in nights if one not in surplus(nights, 1000)] == ["40"]
    assert surplus(nights, 60_000) == ()


def file(number: int) -> tuple[KeptFile, ...]:
    return (KeptFile(f"{number}.whl", f"{number:064x}", 1000, ""),)


def test_a_full_store(keeper: Keeper) -> None:
    for day in range(4):
        assert keeper.keep(f"n{day}", day, size=4000) == []
    assert keeper.keep("n4", 4, size=4000) == ["n1"], "between the two nights nearest to each other"
    assert keeper.keep("asked", 5, "asked for", size=4000) == ["n3"]
    with pytest.raises(UsageError, match=r"x takes 0\.0 MB and does not fit"):
        keeper.keep("x", 6, size=900)
    assert keeper.names == ["n0", "n2", "n4", "asked"], "what does not fit drops nothing"
    assert [one.change for one in keeper.store.collect(2500, dry_run=True)] == ["n2", "n0"]
    assert keeper.store.collect(None, dry_run=False) == () and len(keeper.names) == 4
    keeper.store.collect(2500, dry_run=False)
    keeper.store.collect(10, dry_run=False)
    assert keeper.names == ["asked"], "what was asked for is dropped by hand only"


def test_a_nightly_has_one_last_good_night(keeper: Keeper) -> None:
    keeper.keep("a", 0, "last good night")
    keeper.keep("b", 1, "changed night")
    keeper.keep("c", 2, "last good night")
    assert [one.why for one in keeper.store.all()] == ["changed night", "changed night", "last good night"]
    keeper.keep("b", 3, "asked for")
    keeper.keep("b", 4, "changed night")
    (again,) = [one for one in keeper.store.all() if one.change == "b"]
    assert (again.why, again.nightly, again.kept_at) == ("asked for", "n", DAY)


def test_files_that_several_need_count_once(keeper: Keeper) -> None:
    for name in ("a", "b"):
        keeper.store.keep(artifact(name, more=b"torch" * 200), wanted(name), keeper.build, 3000)
    assert total_bytes(keeper.store.all()) == 3000
    keeper.store.drop(keeper.store.all()[:1])
    assert len(list(keeper.store.root.glob("files/*"))) == 2


def test_an_image_whose_tag_moved_is_kept_anew(keeper: Keeper) -> None:
    for digest in ("sha256:1", "sha256:1", "sha256:2"):
        keeper.store.keep(artifact("a", digest.encode(), digest=digest), wanted("a"), keeper.build, None)
    (kept,) = keeper.store.all()
    assert kept.digest == "sha256:2"
    assert len(list(keeper.store.root.glob("files/*"))) == 1


PROCESS = """
import sys
from pathlib import Path
from tests.environments.test_kept import Keeper
keeper = Keeper(Path(sys.argv[1]))
for day in range(20):
    keeper.keep(f"same{day}", day, size=15_000)
    keeper.keep(f"{sys.argv[2]}{day}", day, size=15_000)
"""


def test_two_processes_keep_at_once(keeper: Keeper, tmp_path: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path), name]) for name in "xy"]
    assert [process.wait(60) for process in both] == [0, 0]
    kept = keeper.store.all()
    assert len(kept) == 15 and total_bytes(kept) == 15_000
    for one in kept:
        assert keeper.store.link(one, tmp_path / "links" / one.change)
    assert {path.name for path in keeper.store.root.glob("files/*")} == {one.files[0].digest for one in kept}
    assert not list(keeper.store.root.glob(".staging/*"))
