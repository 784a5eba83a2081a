"""From results to a commit as it is typed: detect, suspects, repro, report, the site; and bad input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfbisect.cli.app import run
from perfbisect.cli.schema import VERBS
from perfbisect.series.suspects import table
from perfbisect.series.suspects.job import TrackSuspectsDocument
from perfbisect.series.suspects.table import PhaseCode, load_suspect_table
from tests.fakes.gitwriter import HistoryWriter
from tests.nightlies import AT, EACH, HARM, NIGHTS, Nightlies, make_nightlies


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Nightlies:
    return make_nightlies(tmp_path_factory.mktemp("nightlies"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PERFBISECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def typed(*words: str) -> int:
    return run(list(words))


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """What a verb says as JSON, which must be its document."""
    capsys.readouterr()
    assert typed(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    name = " ".join(words[:2])
    (model,) = VERBS[name]
    model.model_validate(found)
    assert isinstance(found, dict)
    return found


def ingest(path: Path) -> None:
    assert typed("track", "ingest", str(path), "--zone", "UTC") == 0


def test_from_results_to_the_commit(made: Nightlies, capsys: pytest.CaptureFixture[str]) -> None:
    ingest(made.all)
    alerts = document(capsys, "track", "detect")["alerts"]
    assert isinstance(alerts, list)
    assert {a["cell"].partition("/")[0] for a in alerts} == {"omni_chunk"}
    assert {(a["shape"], a["cause"], a["first"][:10]) for a in alerts} == {("step", "product", "2026-01-15")}
    ranked = document(capsys, "track", "suspects", "20260115-product", "--repo", str(made.repo))
    suspects = ranked["suspects"]
    assert isinstance(suspects, list)
    assert suspects[0]["sha"] == made.culprit
    assert len(suspects) == EACH
    assert f"--good {made.good} --bad {made.bad}" in str(ranked["bisect"])
    weights = Path(str(ranked["bisect"]).rpartition("--weights ")[2])
    assert made.culprit in weights.read_text()
    capsys.readouterr()
    assert typed("track", "suspects", "20260115-product", "--repo", str(made.repo), "--md") == 0
    assert f"`{HARM}" in capsys.readouterr().out, "in a code span, where nothing acts"


def test_the_phase_that_moved_is_a_reason_where_it_is_said(
    made: Nightlies, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PhaseCode(phases=("decode",), paths=("vllm_omni/engine/**",))
    known = load_suspect_table().model_copy(update={"phases": (row,)})
    monkeypatch.setattr(table, "load_suspect_table", lambda: known)
    ingest(made.all)
    words = ("track", "suspects", "20260115-product", "--repo", str(made.repo))
    silent, said = (
        TrackSuspectsDocument.model_validate(document(capsys, *words, *more))
        for more in ((), ("--phase", "decode"))
    )
    assert (silent.phase, said.phase) == ("", "decode")
    names = [{factor.name for factor in one.suspects[0].evidence} for one in (silent, said)]
    assert names[1] - names[0] == {"phase"}
    assert said.suspects[0].p > silent.suspects[0].p
    capsys.readouterr()
    assert typed(*words, "--phase", "decode") == 0
    rows = capsys.readouterr().out.splitlines()
    assert any("×1.5" in row and "decode moved, and vllm_omni/engine/orchestrator" in row for row in rows)
    assert typed(*words, "--phase", "warm-up") == 2


def test_nothing_is_told_twice(made: Nightlies, capsys: pytest.CaptureFixture[str]) -> None:
    ingest(made.early)
    capsys.readouterr()
    assert typed("track", "detect") == 0
    first = capsys.readouterr().out
    assert "\n2026-01-15  product, step: " in first
    assert typed("track", "detect") == 0
    again = capsys.readouterr().out
    assert again.startswith("Series up to 2026-01-20: no new alerts\n\nKnown before\n  - 20260115-product: ")
    assert typed("track", "ack", "20260115-product", "--reason", "issue 7") == 0
    ingest(made.all)
    later = document(capsys, "track", "detect")["alerts"]
    assert isinstance(later, list)
    known = [a for a in later if a["state"] == "acknowledged"]
    assert known and all(a["why"] == "issue 7" and not a["new"] for a in known)
    name = known[0]["id"]
    assert document(capsys, "track", "close", name, "--reason", "fixed")["before"] == "acknowledged"
    assert document(capsys, "track", "reopen", name, "--reason", "not fixed")["before"] == "closed"


def test_what_is_older_is_not_told_and_new_later(made: Nightlies, capsys: pytest.CaptureFixture[str]) -> None:
    ingest(made.early)
    before = document(capsys, "track", "detect", "--since", "2026-02-01")
    assert before["alerts"] == [] and before["since"] == "2026-02-01"
    after = document(capsys, "track", "detect")
    assert after["alerts"], "what was not told is new"
    assert all(a["new"] for a in after["alerts"])  # type: ignore[attr-defined]


def test_the_report_and_the_site(made: Nightlies, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ingest(made.all)
    typed("track", "detect")
    found = document(capsys, "track", "report")
    rows = found["rows"]
    assert isinstance(rows, list)
    assert {row["status"] for row in rows} == {"regressed: an issue"}
    assert {row["days"] for row in rows} == {NIGHTS - AT}
    assert typed("track", "report") == 0
    assert "| Source | Model | Hardware | Type | Config | Test | Metric |" in capsys.readouterr().out
    levels = document(capsys, "track", "report", "--metric", "ttft:p99")["levels"]
    assert isinstance(levels, list)
    assert len(levels) == 3
    assert typed("track", "report", "--metric", "tput_per_gpu") == 2
    assert "no series of tput_per_gpu" in capsys.readouterr().err
    assert typed("track", "report", "--format", "html") == 0
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>") and "<script" not in page
    made_site = document(capsys, "dashboard", "build", "-o", "site", "--repo", str(made.repo))
    assert (made_site["cells"], made_site["bisections"]) == (3, 0)
    assert (home / "site" / "index.html").is_file()
    data = "".join(path.read_text() for path in (home / "site" / "data").glob("*.js"))
    assert "omni_chunk/random" in data and "<script>alert" not in data


def test_the_ends_are_compared_here(made: Nightlies, capsys: pytest.CaptureFixture[str]) -> None:
    ingest(made.all)
    capsys.readouterr()
    repo = str(made.repo)
    assert typed("track", "reproduce", "20260115-product", "--repo", repo, "--dry-run") == 2
    assert "no cell of ours is known to be omni_chunk/random@c4-n40" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("track", "detect"), "the store has no points"),
        (("track", "detect", "--fdr", "2"), "no share of false alarms"),
        (("track", "detect", "--since", "soon"), "does not match the format"),
        (("track", "suspects", "nosuch"), "no alert 'nosuch' was reported"),
        (("track", "close", "x", "--reason", "y"), "no alert 'x' was reported"),
        (("track", "close", "x"), "Missing option '--reason'"),
        (("track", "ack", "x", "--reason", " "), "--reason is empty"),
        (("track", "report"), "the store has no points"),
        (("dashboard", "build"), "Missing option '-o'"),
        (("dashboard", "build", "-o", "site", "--commit-url", "http://x"), "not a commit address"),
        (("dashboard", "open", "."), "contains no site"),
    ],
)
def test_bad_input(
    made: Nightlies, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    if "suspects" in words or "2" in words:
        ingest(made.early)
        words = (*words, "--repo", str(made.repo)) if "suspects" in words else words
    capsys.readouterr()
    assert typed(*words) == 2
    assert message in capsys.readouterr().err


def test_a_history_that_lacks_the_commits(
    made: Nightlies, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = HistoryWriter(home / "other")
    writer.commit("Another history", {"a": b"a"})
    writer.finish(checkout=False)
    ingest(made.all)
    typed("track", "detect")
    capsys.readouterr()
    assert typed("track", "suspects", "20260115-product", "--repo", "other") == 2
    told = capsys.readouterr().err
    assert "which the history does not have" in told and "git fetch --unshallow" in told
