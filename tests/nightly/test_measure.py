"""Nights on this machine: the branch that is fetched, and the profile of a culprit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from perfbisect.commands.options import JobOptions
from perfbisect.commands.settings import NO_SETTINGS, resolve
from perfbisect.commands.workspace import open_workspace
from perfbisect.errors import LocatedError, MachineError
from perfbisect.jobs.folders import Jobs
from perfbisect.jobs.journal import Journal
from perfbisect.jobs.requests import RequestRecord
from perfbisect.nightly import measure
from perfbisect.nightly.command import NightlyRequest
from perfbisect.nightly.config import OPTIONS, Nightly
from perfbisect.nightly.measure import CommandMachine, build_context
from perfbisect.system.clock import now
from tests.command_line import type_command
from tests.commands.test_profiles import CELL, pretend
from tests.fakes.history import ENGINE, PretendHistory
from tests.fakes.remote import Cloned, cloned

__all__ = ["pretend"]

CONFIG = """\
name: n
cells: [text_cpu_llama100m]
repo: clone
branch: {branch}
fetch: true
env: existing:{python}
client: existing:{python}
exclude_newer: "2026-01-01"
budget: 1h
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloned:
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PERFBISECT_CACHE", str(tmp_path / "cache"))
    found = cloned(tmp_path)
    configured(found)
    return found


def configured(there: Cloned, branch: str = "origin/main") -> Path:
    path = there.clone.parent / "nightly.yaml"
    path.write_text(CONFIG.format(branch=branch, python=sys.executable))
    return path


def test_the_night_is_of_what_was_pushed_since(there: Cloned) -> None:
    config, pushed = configured(there), there.push(2)
    context = build_context(config, NightlyRequest(), fetch=True)
    assert context.commit.id == pushed
    assert context.fetch is not None
    assert context.fetch().reported == f"origin/main is {pushed[:12]}, was {there.commits[0][:12]}"
    again = build_context(config, NightlyRequest(), fetch=True)
    assert again.fetch is not None
    assert again.fetch().reported == f"origin/main is {pushed[:12]}, unchanged"


def test_a_dry_run_asks_nobody(there: Cloned) -> None:
    there.push(2)
    context = build_context(configured(there), NightlyRequest())
    assert (context.commit.id, context.fetch) == (there.commits[0], None)


def test_without_the_net_it_is_of_what_is_there(there: Cloned) -> None:
    shutil.rmtree(there.origin)
    context = build_context(configured(there), NightlyRequest(), fetch=True)
    assert context.commit.id == there.commits[0]
    assert context.fetch is not None
    with pytest.raises(MachineError, match="fetch origin failed"):
        context.fetch()


def test_keys_of_the_file_are_options_before_those_of_the_repository(
    there: Cloned, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(there)
    lines = [line for line in config.read_text().splitlines() if not line.startswith(("client:", "exclude"))]
    more = ("client: existing:./c", "constraints: pins.txt", "machine: cpu", "state: own")
    config.write_text("\n".join((*lines, *more)))
    (there.clone / "perfbisect.yaml").write_text("machine: cuda\nexclude_newer: 2026-01-02\n")
    setting = build_context(config, NightlyRequest()).setting
    assert (setting.machine, setting.exclude_newer) == ("cpu", "2026-01-02")
    assert setting.constraints == str(config.parent / "pins.txt")
    assert setting.client == f"existing:{config.parent / 'c'}"
    asked = resolve(NightlyRequest, {}, NO_SETTINGS)
    assert build_context(config, asked).state == config.parent / "own", "not that of the environment"
    record = RequestRecord("nightly", options={"state": ("typed",)})
    asked = resolve(NightlyRequest, {"state": config.parent / "typed", "record": record}, NO_SETTINGS)
    assert build_context(config, asked).state == config.parent / "typed"
    monkeypatch.setenv("PERFBISECT_EXCLUDE_NEWER", "2026-01-03")
    monkeypatch.setenv("PERFBISECT_MACHINE", "rocm")
    setting = build_context(config, NightlyRequest()).setting
    assert (setting.machine, setting.exclude_newer) == ("cpu", "2026-01-03")


def test_the_keys_that_are_options_have_their_names() -> None:
    assert [field.key for field in OPTIONS] == [
        *("env", "client", "constraints", "exclude_newer", "machine", "fleet", "state")
    ]
    assert "repo" in Nightly.model_fields


@pytest.mark.parametrize("branch", ["HEAD", "main"])
def test_a_branch_that_no_fetch_moves_is_refused(there: Cloned, branch: str) -> None:
    with pytest.raises(LocatedError, match=f"fetch: '{branch}' is not a remote branch") as caught:
        build_context(configured(there, branch), NightlyRequest(), fetch=True)
    assert caught.value.line == 5


@pytest.mark.processes
def test_a_culprit_is_profiled_as_explain_does_it(
    pretend: PretendHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_command(
        [
            *("compare", CELL, "--repo", str(pretend.path), "--a", pretend.good, "--b", pretend.bad),
            *("--blocks", "2", "--env", f"overlay:{sys.executable},base=any"),
            *("--client", f"existing:{sys.executable},path={ENGINE}", "--quiet"),
        ]
    )
    source, machine = Jobs(tmp_path / "state").all()[-1], CommandMachine(open_workspace(), JobOptions())
    with monkeypatch.context() as patch:
        patch.setattr(measure, "find_py_spy", lambda: None)
        assert machine.prepare_profile(source, 60.0).problem == "py-spy is not installed"
    job, prepared = Jobs(tmp_path / "state").new(now(), "0001"), machine.prepare_profile(source, 0.0)
    assert prepared.minutes > 0
    document = prepared.run(job)
    assert document.source == source.id and document.result is not None
    assert [launch.purpose for launch in document.launches] == ["profile"] * 2, "the budget ends it"
    assert job.report.is_file()
    events = job.events()
    assert machine.prepare_profile(source, 60.0).run(job) == document
    assert job.events() == events, "a profile that has ended is read"
    began = next(event.data for event in events if event.kind == "started")
    with Journal(job.journal, clock=now) as journal:
        journal.append("started", {**began, "attempt": "open"})
    assert machine.end_bundles(job) is None, "no other machine has launches of it"
