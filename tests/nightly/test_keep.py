"""Nights keep their wheels: a bisection between old nights finds an environment of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from perfbisect.commands import setups
from perfbisect.commands.options import BuildOptions
from perfbisect.commands.workspace import Workspace, open_workspace
from perfbisect.environments.builders import wheel, wheel_index
from perfbisect.environments.kept import KeptArtifacts, total_bytes
from perfbisect.errors import MachineError, UsageError
from perfbisect.jobs.plans import MeasurementConfig
from perfbisect.nightly.keep import keep_night
from perfbisect.nightly.model import Night, NightCell
from perfbisect.nightly.night import StepResult
from perfbisect.nightly.report import night_report
from perfbisect.nightly.run import run_night
from perfbisect.report.markdown import report_markdown
from tests.command_line import isolate, type_command, type_json
from tests.environments.tiny import write_wheel
from tests.environments.wheel_index import Index, serving
from tests.fakes.gitwriter import HistoryWriter
from tests.nightly.night_factory import alert, make_quiet_night
from tests.nightly.nights import Place

NIGHTS = 60
SIZE = 1e9
CELL = "family: text\nmodel: acme/tiny\ndataset_name: random\nnum_prompts: 8\nmax_concurrency: 1\n"


class Nights:
    """A checkout with a commit a night, whose wheels an index has; each night is over when it is kept."""

    def __init__(self, folder: Path, index: Index) -> None:
        writer = HistoryWriter(folder / "vllm")
        for number in range(NIGHTS):
            writer.commit(f"Step {number}", {"vllm/__init__.py": b"", "vllm/step.py": b"%d" % number})
        self.commits = writer.finish()
        self.index, self.spec = index, f"wheel:{index.address}/{{sha}},variant=default"
        for number, sha in enumerate(self.commits):
            name = f"1.0.dev{number}+g{sha[:9]}"
            index.add(sha, write_wheel(folder / "served", "vllm", name, {"vllm/step.py": b"%d" % number}))
        self.workspace: Workspace = open_workspace(repo=folder / "vllm")
        (folder / "tiny.yaml").write_text(CELL)

    @property
    def store(self) -> KeptArtifacts:
        return KeptArtifacts(self.workspace.cache)

    def setting(self, spec: str = "") -> MeasurementConfig:
        change = self.workspace.needed_repository().resolve(self.commits[0])
        return setups.build_config(self.workspace, spec or self.spec, (change,), BuildOptions())

    def night(self, number: int, **changed: object) -> Night:
        commit = self.workspace.needed_repository().resolve(self.commits[number])
        began = datetime(2026, 1, 1, 2, tzinfo=timezone.utc) + timedelta(days=number)
        own = {"name": "n", "commit": commit, "began": began.isoformat(), "folder": str(self.workspace.cache)}
        return make_quiet_night().model_copy(update={**own, **changed})

    def keep(self, number: int, size: float = SIZE, spec: str = "", **changed: object) -> str:
        night = self.night(number, **changed)
        return keep_night(self.workspace, self.setting(spec), size, night).reported


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nights]:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setattr(wheel, "driver_cuda", lambda: None)
    monkeypatch.setattr(wheel_index, "_TRIES", 1)
    with serving() as index:
        yield Nights(tmp_path, index)


def whys(nights: Nights) -> list[str]:
    return [one.why for one in nights.store.all()]


def test_a_bisection_over_sixty_nights_finds_sixty_environments(nights: Nights) -> None:
    for number in range(NIGHTS):
        nights.keep(number)
    assert [one.change for one in nights.store.all()] == list(nights.commits)
    assert whys(nights) == ["changed night"] * (NIGHTS - 1) + ["last good night"]
    words = ("bisect", "tiny.yaml", "--repo", "vllm", "--good", nights.commits[0], "--bad", "HEAD",
             "--env", nights.spec, "--machine", "cpu", "--dry-run")  # fmt: skip
    nights.index.files.clear()
    plan = type_json(*words)
    assert (plan["changes"], plan["skips"]) == (NIGHTS, [])
    assert f"{NIGHTS} of {NIGHTS} commits have wheels that were kept; the index: HTTP 404" in plan["notes"]
    nights.index.failing["*"] = [503]
    assert type_json(*words)["skips"] == []
    listed = type_json("env", "list")
    assert len(listed["artifacts"]) == NIGHTS
    assert listed["artifact_megabytes"] == round(total_bytes(nights.store.all()) / 1e6, 1)
    assert f"{nights.commits[0][:24]}" in type_command(["env", "list"]).out
    nights.store.drop(nights.store.all()[1:3])
    nights.index.failing.clear()
    assert [skip["change"]["id"] for skip in type_json(*words)["skips"]] == list(nights.commits[1:3])


def test_a_size_thins_the_nights_out(nights: Nights) -> None:
    nights.keep(0)
    size = total_bytes(nights.store.all()) * 4.5
    said = [nights.keep(number, size) for number in range(1, 12)]
    left = [nights.commits.index(one.change) for one in nights.store.all()]
    assert len(left) == 4 and left[0] == 0 and left[-1] == 11
    assert max(after - before for before, after in itertools.pairwise(left)) <= 6
    assert "; dropped 1" in said[-1] and "together 4 commits, " in said[-1] and "dropped" not in said[0]
    with pytest.raises(UsageError, match="does not fit"):
        nights.keep(20, 10)


def test_which_night_is_good(nights: Nights) -> None:
    failed = NightCell(name="b", digest="b", state="failed", reason="no memory")
    nights.keep(0)
    assert "last good night" in nights.keep(1)
    assert "changed night" in nights.keep(2, alerts=(alert(),))
    assert "changed night" in nights.keep(3, alerts=(alert(change="updated"),))
    assert "changed night" in nights.keep(4, cells=(*make_quiet_night().cells, failed))
    assert whys(nights) == ["changed night", "last good night", *["changed night"] * 3]
    assert "last good night" in nights.keep(5, alerts=(alert(change="closed"), alert(worse=False)))
    assert whys(nights)[1] == "changed night"
    assert " was kept already" in nights.keep(5, began="2026-03-01T02:00:00+00:00")


def test_what_is_not_kept(nights: Nights) -> None:
    assert nights.keep(0, cells=()) == "nothing: no cell was measured"
    assert nights.keep(0, spec="source").startswith("nothing: source needs no wheel")
    nights.index.failing["*"] = [503]
    with pytest.raises(MachineError, match="does not answer"):
        nights.keep(0)
    assert not nights.store.all()


def test_a_night_says_what_it_keeps(place: Place, nights: Nights) -> None:
    """After the alerts, before the report; a failure is a step's."""
    seen: list[Night] = []

    def keep(night: Night, number: int) -> StepResult:
        seen.append(night)
        return keep_night(nights.workspace, nights.setting(), SIZE, nights.night(number))

    place.world.moment = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
    night = run_night(replace(place.context(0), keep=partial(keep, number=0)))
    assert [step.name for step in seen[0].steps][-1] == "search"
    assert night.kept.startswith(nights.commits[0][:7]) and "last good night" in night.kept
    assert f"| kept | `{night.kept}` |" in Path(night.files["night"]).read_text()
    assert f"| kept | `{night.kept}` |" in report_markdown(night_report(night))
    nights.index.failing["*"] = [503]
    place.world.moment += timedelta(days=1)
    failed = run_night(replace(place.context(1), keep=partial(keep, number=1)))
    assert failed.exit_code == 5 and ("keep", failed.kept) in failed.failed()


def test_keeping_by_hand(nights: Nights, tmp_path: Path) -> None:
    words = ("--repo", "vllm", "--env", nights.spec)
    first, second, *_ = nights.commits
    made = type_json("env", "keep", first, second, *words)
    assert [(one["change"], one["why"], one["spec"]) for one in made["artifacts"]] == [
        (first, "asked for", nights.spec), (second, "asked for", nights.spec),
    ]  # fmt: skip
    assert type_json("env", "keep", first, *words)["artifacts"] == made["artifacts"][:1]
    told = type_command(["env", "keep", nights.commits[2], *words, "--kept-size", "1k"])
    assert told.code == 2 and "does not fit" in told.err
    assert type_json("env", "keep", first, "--repo", "vllm", "--env", "source", code=2)["error"]
    (tmp_path / "vllm" / "perfbisect.yaml").write_text("kept_size: 1k\n")
    assert type_command(["env", "keep", nights.commits[2], *words]).code == 2
    assert type_json("env", "gc", "--kept-size", "1k")["dropped"] == [], "what was asked for stays"
    nights.keep(3)
    dropped = type_json("env", "gc", "--kept-size", "1k", "--dry-run")["dropped"]
    assert [one["change"] for one in dropped] == [nights.commits[3]] and len(nights.store.all()) == 3
    assert "dropped: kept files exceed --kept-size" in type_command(["env", "gc", "--kept-size", "1k"]).out
    assert type_json("env", "keep", "--drop", first[:10])["dropped"][0]["change"] == first
    assert [one.change for one in nights.store.all()] == [second]
    assert type_command(["env", "keep", "--drop", first]).code == 2
