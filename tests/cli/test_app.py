"""The command line inside this process: where things go, and what becomes of whatever goes wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import perfbisect
from perfbisect.cli.app import app, run
from perfbisect.cli.verbs import Verbs
from perfbisect.commands.workspace import open_workspace
from perfbisect.common.quantities import parse_minutes
from perfbisect.errors import Interrupted, MachineError, UsageError
from scripts.schema_digests import TARGET
from tests.command_line import type_command, type_json
from tests.fixtures.jobs import Start
from tests.jobs.world import World, history


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERFBISECT_STATE", str(tmp_path))
    monkeypatch.setenv("PERFBISECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("3h", 180), ("90m", 90), ("1h30m", 90), ("1.5h", 90), (" 2 H ", 120), ("45min", 45)],
)
def test_durations(text: str, minutes: float) -> None:
    assert parse_minutes(text) == minutes
    for unknown in ("", "3", "h", "3d", "0m", "-3h", "30m3h", "soon"):
        with pytest.raises(ValueError, match=r"3h, 90m|no time at all"):
            parse_minutes(unknown)


def test_state_and_cache_of_the_settings_are_relative_to_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERFBISECT_STATE")
    monkeypatch.delenv("PERFBISECT_CACHE")
    subprocess.run(["git", "init", "-q", "."], check=True)
    (home / "perfbisect.yaml").write_text("state: s\ncache: c\n")
    here = open_workspace(repo=home)
    assert (here.state, here.cache) == (home / "s", home / "c")
    monkeypatch.setenv("PERFBISECT_STATE", "elsewhere")
    assert open_workspace(repo=home).state == home / "elsewhere", "the environment comes before the file"
    assert open_workspace(repo=home, state=home / "typed").state == home / "typed"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("bad word"), 2),
        (MachineError("no disk", where="/x", next_step="make room"), 5),
        (Interrupted("stopped"), 130),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("no such option"), 2),
        (RuntimeError("a mistake"), 1),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_whatever_goes_wrong_is_told_and_has_its_code(
    error: BaseException,
    code: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "main", fail)
    assert run(["doctor", "--json"] if as_json else ["doctor"]) == code
    out, err = capsys.readouterr()
    if as_json:
        document = json.loads(out)
        assert (document["schema"], document["exit_code"], err) == ("perfbisect.error/1", code, "")
    else:
        assert out == ""
        assert err.startswith("error: ")
    if code == 1:
        log = re.search(r"/\S+perfbisect-\w+\.log", out + err)
        assert log is not None
        assert "RuntimeError: a mistake" in Path(log[0]).read_text()
        Path(log[0]).unlink()


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from perfbisect.cli.app import run; run(['-h']); "
        "print([m for m in ('numpy', 'pandas', 'scipy', 'requests', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_only_looks_at_jobs_and_cells_imports_nothing_to_compute_or_to_ask_others_with(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from perfbisect.cli.app import run\n"
        "for typed in ('stop x', 'cells list', 'env list', 'status'):\n"
        "    run([*typed.split(), '--json'])\n"
        "    heavy = {'pandas', 'scipy', 'requests'} | {'numpy' if typed != 'status' else ''}\n"
        "    assert not heavy & sys.modules.keys(), (typed, heavy & sys.modules.keys())"
    )
    own = os.environ | {"PERFBISECT_STATE": str(tmp_path), "PERFBISECT_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr


def test_jobs_are_listed_and_the_one_unfinished_is_taken(start: Start) -> None:
    assert type_json("status") == {"schema": "perfbisect.jobs/1", "jobs": []}
    begun = start(World(history(8).changes, slow=5))
    job, status = begun.job, type_json("status")
    assert (status["job"], status["state"], status["outcome"]) == (job.id, "unfinished", "unfinished")
    assert json.loads(type_command(["report", "--format", "json"]).out)["outcome"] == "unfinished"
    begun.run()
    assert f"{job.id}  finished" in type_command(["status"]).out
    assert "no unfinished job" in type_json("report", code=2)["error"]
    assert type_json("report", job.id)["outcome"] == "found"
    job.journal.write_text("nonsense\n" + job.journal.read_text())
    assert type_json("status", job.id, code=2)["where"] == f"{job.journal}:1"


def old_click(self: click.Group, ctx: click.Context, args: list[str]) -> Any:
    """What a click does that names nothing, as those before 8.4."""
    command = self.get_command(ctx, args[0])
    if command is None:
        ctx.fail(f"No such command {args[0]!r}.")
    return args[0], command, args[1:]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["bisct"], "No such command 'bisct'; nearest: bisect"),
        (["BISECT"], "No such command 'BISECT'; nearest: bisect"),
        (["track", "sus"], "No such command 'sus'; nearest: suspects"),
        (["qqqqqq"], "No such command 'qqqqqq'\n"),
    ],
)
@pytest.mark.parametrize("old", [True, False])
def test_the_nearest_verbs_are_named(
    typed: list[str],
    told: str,
    old: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if old:
        monkeypatch.setattr(click.Group, "resolve_command", old_click)
    assert run(typed) == 2
    assert told in capsys.readouterr().err


def test_every_group_names_them() -> None:
    found: list[click.Command] = [app]
    for command in found:
        found += command.commands.values() if isinstance(command, click.Group) else []
    assert [one.name for one in found if isinstance(one, click.Group) and not isinstance(one, Verbs)] == []
    assert len([one for one in found if isinstance(one, Verbs)]) > 5


def test_the_versions_of_what_is_written_are_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"perfbisect, version {perfbisect.__version__}\n"
    assert run(["--version", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "perfbisect.version/1" and told["version"] == perfbisect.__version__
    assert {"journal", "store"} <= set(told)
    assert {*json.loads(TARGET.read_text())} == set(told["documents"])
    assert run(["--json"]) == 2 and "comes after the command" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "lacking"),
    [
        ("compare", ["--b CHANGE", "CELL (unless"]),
        ("compare text_latency_c1 --a v1", ["--b CHANGE"]),
        ("run --json", ["--at CHANGE", "CELL (unless"]),
        ("cells import", ["SPEC...", "--output PATH"]),
        ("cells diff a", ["B"]),
        ("track suspects", ["ALERT"]),
        ("agent run request.json", ["--folder PATH"]),
    ],
)
def test_all_that_is_missing_is_said_at_once_with_an_example(
    typed: str, lacking: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split()) == 2
    told = capsys.readouterr()
    printed = json.loads(told.out) if "--json" in typed else None
    message = printed["error"] if printed else told.err.splitlines()[0].removeprefix("error: ")
    named = message.removeprefix("missing: ").split(", ")
    assert len(named) == len(lacking)
    assert all(name.startswith(wanted) for name, wanted in zip(named, lacking, strict=True)), message
    verb = " ".join(word for word in typed.split()[:2] if word in typed.split()[0] or word.isalpha())
    example = printed["next"] if printed else told.err.splitlines()[1]
    assert f"for example: perfbisect {verb.split()[0]} " in example


def test_every_command_that_needs_something_has_an_example() -> None:
    found: list[tuple[str, click.Command]] = [("perfbisect", app)]
    for name, command in found:
        if isinstance(command, click.Group):
            found += [(f"{name} {word}", one) for word, one in command.commands.items()]
    needing = [(name, one) for name, one in found if any(param.required for param in one.params)]
    assert len(needing) > 10
    assert [
        name for name, one in needing if f"      {name} " not in f"{one.help}".replace("\n  ", "\n      ")
    ] == []


def test_without_a_word_the_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    told = capsys.readouterr()
    assert told.out.startswith("Usage: perfbisect") and told.err == ""


def test_ctrl_c_while_it_is_loaded_has_no_traceback() -> None:
    script = """
import sys
from perfbisect.cli import main
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
main(["--version"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
