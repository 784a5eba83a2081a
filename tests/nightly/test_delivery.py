"""The steps that publish, export and tell a night: what the configuration asks for, and no more."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfbisect.nightly.delivery import WEBHOOK_TRIES, delivery_tasks
from perfbisect.nightly.night import NightTask
from perfbisect.report.summary import MAX_SUMMARY_BYTES
from perfbisect.system.http import RetryPolicy
from tests.nightly.night_factory import make_night, make_quiet_night
from tests.nightly.nights import Place
from tests.nightly.webhook_server import NAME, SECRET, serve_hook

CONFIG = """\
name: n
cells: [a]
budget: 10h
exclude_newer: "2026-01-01"
"""


@pytest.fixture
def cell_names() -> tuple[str, ...]:
    return ("a",)


def steps(place: Place, more: str, variables: Mapping[str, str] | None = None) -> dict[str, NightTask]:
    place.text = CONFIG + more
    retries = RetryPolicy("webhook", WEBHOOK_TRIES, wait=lambda _: None)
    return dict(delivery_tasks(place.file, place.folder / "state", variables or {}, retries))


def test_nothing_is_done_that_is_not_asked_for(place: Place, tmp_path: Path) -> None:
    assert steps(place, "") == {}
    summary = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    assert list(steps(place, "", summary)) == ["job summary"]
    assert steps(place, "tell: {job_summary: false}\n", summary) == {}


def test_a_night_is_exported_and_written(place: Place, tmp_path: Path) -> None:
    asked = "publish: kanban\nexports: {csv: out/series.csv, benchmark: out/bench.json}\n"
    asked += "tell: {markdown: night.md}\n"
    summary = tmp_path / "summary"
    found = steps(place, asked, {"GITHUB_STEP_SUMMARY": str(summary)})
    assert list(found) == ["publish", "exports", "markdown", "job summary"]
    place.tasks = found
    document = place.night(0)
    assert {one.name: one.state for one in document.steps if one.name in found} == dict.fromkeys(
        found, "done"
    )
    assert document.exit_code == 0
    with (tmp_path / "out" / "series.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["cell"] for row in rows} == {"a"}
    assert {row["commit"] for row in rows} == {document.commit.id}
    assert len({row["launch"] for row in rows}) == 2
    entries = json.loads((tmp_path / "out" / "bench-smaller.json").read_text())
    assert "a tpot" in {entry["name"] for entry in entries}
    assert json.loads((tmp_path / "out" / "bench-bigger.json").read_text())[0]["unit"] == "tok/s"
    assert {"csv", "benchmark smaller", "benchmark bigger", "markdown", "published"} <= set(document.files)
    text = (tmp_path / "night.md").read_text()
    assert text.startswith("# Nightly n of 2026-01-01: too few nights to judge")
    assert summary.read_text() == text
    told = next(one.reported for one in document.steps if one.name == "publish")
    assert "0 launches, 0 new files; skipped: " in told, "what lacks its requests is told"


def test_a_summary_is_cut_to_what_is_left_of_it(place: Place, tmp_path: Path) -> None:
    summary = tmp_path / "summary"
    step = steps(place, "", {"GITHUB_STEP_SUMMARY": str(summary)})["job summary"]
    summary.write_bytes(b"x" * (MAX_SUMMARY_BYTES - 2100))
    many = make_night(cells=make_night().cells * 100)
    assert step(many).reported == "appended"
    assert MAX_SUMMARY_BYTES - 400 < summary.stat().st_size <= MAX_SUMMARY_BYTES
    assert "(Truncated: " in summary.read_text()
    assert step(many).reported == "skipped: earlier steps have filled it"
    assert summary.stat().st_size <= MAX_SUMMARY_BYTES


def test_a_webhook_is_told_of_findings(place: Place) -> None:
    with serve_hook((200, "ok", {})) as hook:
        variables = hook.variables() | {"BUILDKITE_BUILD_URL": "https://buildkite.com/o/p/builds/1"}
        step = steps(place, f"tell: {{webhook: {{url: {NAME}}}}}\n", variables)["webhook"]
        assert step(make_quiet_night()).reported == "skipped: no findings"
        assert hook.got == []
        assert step(make_night()).reported == "sent to http://127.0.0.1/(redacted)"
        always = steps(place, f"tell: {{webhook: {{url: {NAME}, when: always}}}}\n", variables)
        always["webhook"](make_quiet_night())
    first, second = hook.got
    assert (first["schema"], first["link"]) == (
        "perfbisect.nightly-message/2",
        variables["BUILDKITE_BUILD_URL"],
    )
    assert second["text"] == "vllm-cpu: nothing new"
    _, *events, link = first["text"].splitlines()
    assert link == first["link"], "a reader of the chat goes on from there"
    for commit in first["commits"]:
        (told,) = [text for text in events if commit["id"][:8] in text]
        (bisection,) = [one for one in make_night().bisections if one.event == commit["event"]]
        assert bisection.metric in told and commit["subject"].split()[0] in told and " %" in told
    assert not any("<" in text for text in events), "no mention of a subject acts in a chat"
    new = [alert for alert in make_night().alerts if alert.is_opened and alert.counts]
    assert new and all(any(alert.cell in text for text in events) for alert in new[:1])
    pictures = {row.alert: row.picture for row in make_night().rows}
    shown = [pictures[alert.id] for alert in new if alert.id in pictures]
    assert shown and all(any(text.endswith(picture) for text in events) for picture in shown)


def test_a_webhook_that_refuses_fails_its_step_and_shows_nothing(place: Place) -> None:
    with serve_hook((404, "no_service", {})) as hook:
        found = steps(place, f"tell: {{webhook: {{url: {NAME}, when: always}}}}\n", hook.variables())
        place.tasks = found
        document = place.night(0)
    step = next(one for one in document.steps if one.name == "webhook")
    assert (step.state, step.next) == ("failed", f"set {NAME} again")
    assert "no_service" in step.reported
    assert document.exit_code == 2
    written = [
        path for path in place.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert written == []
