"""Every transcript, played; and the player itself."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfbisect.system.environ import user_name
from tests.command_line import isolate
from tests.environments.tiny import write_wheel
from tests.fakes import checkouts
from tests.fakes.gitwriter import HistoryWriter
from tests.fakes.history import ENGINE, make_history
from tests.measure.test_sglang import SGLANG
from tests.nightlies import make_nightlies
from tests.transcripts.runner import FOLDER, agrees, at, matches, parse, play, says_what_comes_next

TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
LONG = ("bisection", "check", "clients", "compare", "known_good", "nightly", "sglang", "swaps", "track")


def make_sglang(folder: Path) -> dict[str, str]:
    """A repository of the pretend SGLang, whose last commit is slower, and how its environments are made."""
    writer = HistoryWriter(folder / "sglang")
    files = {f"python/sglang/{file.name}": file.read_bytes() for file in sorted(SGLANG.glob("sglang/*.py"))}
    writer.commit("Import the engine", files)
    slower = files["python/sglang/__init__.py"].replace(b"STEP_MS = 4.0", b"STEP_MS = 9.0")
    writer.commit("Slow down", {"python/sglang/__init__.py": slower})
    good, bad = writer.finish()
    script = folder / "make_environment.sh"
    script.write_text(
        f'#!/bin/sh\nset -e\n"{sys.executable}" -m venv --without-pip "$2"\n'
        'cp -r "$1/python/sglang" "$2"/lib/python3*/site-packages/\n'
        'cd "$2"/lib/python3*/site-packages/sglang\n[ -z "$3" ] || echo >> __init__.py\n'
    )
    script.chmod(0o755)
    return {
        "SGLANG": str(folder / "sglang"),
        "OLDER": good,
        "NEWER": bad,
        "ENVIRONMENT": f"command:{script} {{tree}} {{env}},package=sglang",
        "CHANGED": f"command:{script} {{tree}} {{env}} changed,package=sglang",
    }


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.processes] * (path.stem in LONG))
        for path in TRANSCRIPTS
    ],
)
def test_transcript(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    names = {
        "FOLDER": str(tmp_path),
        "USER": user_name(),
        "PYTHON": sys.executable,
        "ENGINE": str(ENGINE),
        "CELL": str(FOLDER.parents[1] / "pretend" / "cells" / "pretend.yaml"),
        "MODEL": str(FOLDER.parents[1] / "pretend" / "cells" / "models" / "pretend"),
    }
    if "{REPO}" in text:
        pace = {"LAUNCH_SD": 0.005, "RUN_SD": 0.005, "OUTLIER_PROBABILITY": 0.0}
        history = make_history(
            tmp_path / "repo", commits=6, slow=4, factor=2.0, docs=(2,), hostile=1, pace=pace, checkout=True
        )
        names |= {
            "REPO": str(history.path),
            "GOOD": history.good,
            "BAD": history.bad,
            "CULPRIT": str(history.culprit),
            "CULPRIT_SHORT": str(history.culprit)[:12],
        }
    if "{FAILING}" in text:
        failing = make_history(tmp_path / "failing", commits=6, slow=None, since={3: "exit1"})
        names |= {
            "FAILING": str(failing.path),
            "FAILING_GOOD": failing.good,
            "FAILING_BAD": failing.bad,
            "FAILING_SHORT": failing.commits[3][:12],
        }
    if "{CHECKOUT}" in text:
        checkouts.vllm(tmp_path / "vllm")
        names["CHECKOUT"] = str(tmp_path / "vllm")
    if "{SGLANG}" in text:
        names |= make_sglang(tmp_path)
    if "{SLOW_CLIENT}" in text:
        names["SLOW_CLIENT"] = str(tmp_path / "slow")
        shutil.copytree(ENGINE, tmp_path / "slow", ignore=shutil.ignore_patterns("__pycache__"))
        client = tmp_path / "slow" / "vllm" / "benchmarks" / "serve.py"
        receiving = "        event, now"
        slower = f"        time.sleep(0.02)\n{receiving}"
        client.write_text(client.read_text().replace(receiving, slower))
    if "{NIGHTLIES}" in text:
        made = make_nightlies(tmp_path / "nightlies")
        names |= {
            "NIGHTLIES": str(tmp_path / "nightlies"),
            "GOOD": made.good,
            "BAD": made.bad,
            "CULPRIT_SHORT": made.culprit[:12],
        }
    if "{HELPER}" in text:
        write_wheel(tmp_path / "wheels", "pretend-helper", "1.0", {"pretend_helper.py": b""})
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
        names["HELPER"] = "pretend-helper"
    isolate(tmp_path, monkeypatch)
    play(parse(text), names)


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 5


@pytest.mark.parametrize(
    ("wanted", "shown", "good"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\nb\nc\n", True),
        (["...", "c"], "a\nb\nc\n", True),
        (["...", "b"], "a\nb\nc\n", False),
        (["took ... s"], "took 3.2 s\n", True),
        (["took ... s"], "took 3.2 min\n", False),
        (["a.c"], "abc\n", False),
    ],
)
def test_the_player_sees_a_difference(wanted: list[str], shown: str, good: bool) -> None:
    assert matches(wanted, shown) is good


@pytest.mark.parametrize(
    ("out", "err", "good"),
    [
        ("", "", True),
        ("a\n", "#1 launched\n", True),
        ("", "error: no cell\n  where: x\n  next:  perfbisect cells list\n", True),
        ("", "error: no cell\n  where: x\n", False),
        ("", "error: no cell\n  next:  \n", False),
        ('{"schema": "perfbisect.error/1", "next": "perfbisect -h"}', "", True),
        ('{"schema": "perfbisect.error/1", "next": null}', "", False),
    ],
)
def test_the_player_sees_an_error_that_leaves_its_reader_alone(out: str, err: str, good: bool) -> None:
    assert says_what_comes_next(out, err) is good


def test_a_line_that_means_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2 means nothing"):
        parse("$ perfbisect -h\nhello\n")


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        (3, 3, 4),
        ({"min": 0.9}, 0.95, None),
        ({"max": 2}, 2, 3),
        ({"has": "b"}, ["a", "b"], ["a"]),
        ({"only": ["a"]}, ["a", "a"], []),
        ({"none_of": ["a"]}, ["b"], ["a", "b"]),
    ],
)
def test_the_player_sees_another_value(wanted: Any, good: Any, bad: Any) -> None:
    assert agrees(good, wanted) and not agrees(bad, wanted)


def test_paths_go_through_keys_and_places() -> None:
    document: Mapping[str, Any] = {"a": [{"b": 1}, {"b": 2}]}
    assert (at(document, "a.1.b"), at(document, "a.*.b")) == (2, [1, 2])
    assert at({"a": [{"b": "x", "c": 1}, {"b": "y", "c": 2}]}, "a.[b=y].c") == [2]
    with pytest.raises(KeyError):
        at(document, "c")
